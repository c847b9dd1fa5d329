// The same as transfer.c in C++: handles are freed by their owners, and what goes wrong is thrown.
#include <polyrail.hpp>

#include <algorithm>
#include <cstring>
#include <iostream>

using namespace std::chrono_literals;

int main()
{
    constexpr std::uint64_t bytes = 1 << 20;
    // Peers are let in once what they ask for is there.
    polyrail::Engine target(R"({ "name": "target", "listen": "127.0.0.1:0", "workers": 1 })", true);
    polyrail::Segment offered = target.allocate("mem", bytes, POLYRAIL_ACCESS_REMOTE_READ_WRITE);
    target.let_in();

    polyrail::Engine engine(R"({ "name": "initiator", "workers": 1 })");
    std::vector<unsigned char> mine(bytes, 0x5a);
    polyrail::Segment local = engine.register_memory("here", mine.data(), bytes, POLYRAIL_ACCESS_LOCAL);
    polyrail::Segment remote = engine.open(target.listening() + "/mem");

    polyrail::Batch batch = engine.submit({polyrail::request(POLYRAIL_WRITE, local, 0, remote, 0, bytes)});
    auto ended = batch.wait(10s);
    if (!ended || ended->status != POLYRAIL_STATUS_COMPLETED)
        return 1;
    if (std::memcmp(offered.look().base, mine.data(), bytes) != 0)
        return 1;

    // The queue keeps what it is told of: this batch has no owner any more when it ends.
    polyrail::Queue queue;
    queue.add(engine.submit({polyrail::request(POLYRAIL_READ, local, 0, remote, 0, bytes)}), 7);
    auto completion = queue.take(10s);
    if (!completion || completion->tag != 7 || completion->status != POLYRAIL_STATUS_COMPLETED)
        return 1;

    polyrail::Prepared prepared = engine.prepare({polyrail::request(POLYRAIL_WRITE, local, 0, remote, 0, bytes)});
    for (unsigned char value = 0; value < 10; value++) {
        std::fill(mine.begin(), mine.end(), value);
        auto posted = prepared.post().wait(10s);
        if (!posted || posted->status != POLYRAIL_STATUS_COMPLETED)
            return 1;
        if (std::memcmp(offered.look().base, mine.data(), bytes) != 0)
            return 1;
    }

    std::fill(mine.begin(), mine.end(), 0x33);
    polyrail_status status = POLYRAIL_NEW(polyrail_status);
    if (polyrail::Batch going = prepared.post_or_finish(status))
        status = going.wait(10s).value_or(status);
    if (status.status != POLYRAIL_STATUS_COMPLETED || std::memcmp(offered.look().base, mine.data(), bytes) != 0)
        return 1;

    try {
        engine.submit({polyrail::request(POLYRAIL_WRITE, local, 0, remote, bytes, 1)});
        return 1;
    } catch (const polyrail::Error &error) {
        if (error.code() != POLYRAIL_ERROR_RANGE || error.index() != 0)
            return 1;
        std::cout << "as expected: " << error.what() << "\n";
    }
    // What is open twice is closed with the second owner.
    /* One that is waited for, and follows its peer to the next process. */
    polyrail_open_terms terms = POLYRAIL_NEW(polyrail_open_terms);
    terms.within_ns = 1000000000;
    terms.standing = 1;
    polyrail::Segment other = engine.open(target.listening() + "/mem", &terms);
    if (engine.take_peer_event(0s))
        return 1;
    other.close();
    if (other || remote.look().bytes != bytes)
        return 1;
    remote.close();

    polyrail::Batch moved = std::move(batch);
    if (batch || !moved || moved.report(0).status != POLYRAIL_STATUS_COMPLETED)
        return 1;
    std::cout << "ok" << std::endl;
}
