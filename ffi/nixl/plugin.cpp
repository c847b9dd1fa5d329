// The back end POLYRAIL for NIXL: says in the words of polyrail.h what NIXL asks for in its own.

#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <shared_mutex>
#include <sstream>
#include <thread>

#include "mail.hpp"
#include "plan.hpp"

namespace polyrail_nixl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t MILLISECOND = 1'000'000;
// Of a notification that goes as one; longer ones go in parts.
constexpr std::size_t PART_BYTES = POLYRAIL_NOTIFICATION_BYTES_MAX - 8192;
constexpr std::size_t AGENT_NAME_BYTES_MAX = 4096;
// So long a destroyed engine waits for peers to have what they were told.
constexpr std::uint64_t FAREWELL = 1000 * MILLISECOND;
// So long a release or a deregistration waits until nobody reads or writes the memory any more, where NIXL takes it back
// whatever it is answered: past the bound within which the engine gives up a peer that is silent.
constexpr std::uint64_t LETTING_GO = 2500 * MILLISECOND;
// So long a check waits if the program does nothing else but check this transfer: its thread moves bytes meanwhile.
constexpr std::uint64_t PATIENCE = 50'000;

// A transfer that is prepared, and what has become of its last post.
struct Transfer : Request {
    std::mutex lock;
    polyrail_prepared prepared{};
    polyrail_batch batch{};
    std::shared_ptr<Door> door;
    std::string peer;
    // What it reads or writes here.
    std::set<const Metadata*> locals;
    // NIXL has been told that it cannot be released yet.
    bool is_refused = false;
    Status status = Status::NOT_POSTED;
    // There was no room: it is posted again by the next check.
    bool waits = false;
    std::string notification;
    bool has_notification = false;
    std::uint64_t parts = 0;

    ~Transfer() override {
        polyrail_batch_free(batch, nullptr);
        polyrail_prepared_free(prepared, nullptr);
    }
};

// How a batch that stands so is said to NIXL, and why on standard error if it has not ended well.
Status said(polyrail_batch batch, const polyrail_status& status, const std::string& peer) {
    if (status.status == POLYRAIL_STATUS_PENDING) return Status::IN_PROGRESS;
    if (status.status == POLYRAIL_STATUS_COMPLETED) return Status::SUCCESS;
    if (status.status == POLYRAIL_STATUS_CANCELLED) return Status::CANCELED;
    std::string why;
    auto report = POLYRAIL_NEW(polyrail_report);
    for (std::size_t index = 0; why.empty() && index < status.requests; ++index) {
        if (polyrail_batch_report(batch, index, &report, nullptr) != POLYRAIL_OK) break;
        if (report.status == status.status) why = polyrail_cause_text(report.cause);
    }
    say("a transfer with \"" + peer + "\" of " + std::to_string(status.requests) + " requests, " +
        std::to_string(status.failed) + " of which did not complete: " + polyrail_status_name(status.status) +
        (why.empty() ? "" : ", " + why));
    return status.status == POLYRAIL_STATUS_PEER_LOST ? Status::REMOTE_DISCONNECT : Status::BACKEND;
}

// Whether anybody might still read or write memory on this side.
bool is_held(polyrail_batch batch) {
    auto status = POLYRAIL_NEW(polyrail_status);
    if (batch.bits == 0 || polyrail_batch_status(batch, &status, nullptr) != POLYRAIL_OK) return false;
    if (status.status == POLYRAIL_STATUS_PENDING) return true;
    if (status.status != POLYRAIL_STATUS_INDETERMINATE) return false;
    auto report = POLYRAIL_NEW(polyrail_report);
    for (std::size_t index = 0; index < status.requests; ++index) {
        if (polyrail_batch_report(batch, index, &report, nullptr) != POLYRAIL_OK) return false;
        if (report.local == POLYRAIL_LOCAL_HELD) return true;
    }
    return false;
}

}  // namespace

// One engine for each back end of an agent.
class Backend final : public Engine {
public:
    explicit Backend(const Creation& creation) : Engine(creation) {
        has_failed = !start(*creation.parameters);
    }

    ~Backend() override {
        for (auto& [peer, delivery] : deliveries) {
            std::uint32_t status = 0;
            polyrail_delivery_wait(delivery, FAREWELL, &status, nullptr);
            polyrail_delivery_free(delivery, nullptr);
        }
        for (Transfer* transfer : transfers) delete transfer;
        peers.clear();
        doors.clear();
        polyrail_engine_free(engine, nullptr);
    }

    bool supports_remote() const override { return true; }
    bool supports_local() const override { return true; }
    bool supports_notifications() const override { return true; }
    Memories memories() const override { return kinds; }

    Status register_memory(const Registered& memory, const Memory& kind, Metadata*& made) override {
        auto local = std::make_unique<Local>();
        local->base = memory.address;
        local->number = next_segment++;
        local->is_file = kind == Memory::FILE;
        Error error;
        const std::string name = "nixl-" + hexadecimal(self->incarnation) + "-" + std::to_string(local->number);
        if (local->is_file) {
            open_file(memory, name, *local, error);
        } else {
            auto* base = reinterpret_cast<void*>(memory.address);
            polyrail_segment_register(engine, name.c_str(), base, memory.length, POLYRAIL_ACCESS_REMOTE_READ_WRITE,
                                      &local->segment, &error);
        }
        if (error.code != POLYRAIL_OK) return error.told("registering " + std::to_string(memory.length) + " bytes");
        made = local.release();
        return Status::SUCCESS;
    }

    Status deregister_memory(Metadata* memory) override {
        auto* local = static_cast<Local*>(memory);
        Error error;
        int code = polyrail_segment_free(local->segment, &error);
        if (code == POLYRAIL_ERROR_IN_USE) {
            // NIXL's programs take the memory back whatever this says.
            cancel_all_with(local);
            const auto end = Clock::now() + std::chrono::nanoseconds(LETTING_GO);
            while (code == POLYRAIL_ERROR_IN_USE && Clock::now() < end) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                code = polyrail_segment_free(local->segment, &error);
            }
        }
        if (code != POLYRAIL_OK) return error.told("deregistering memory, which is still read or written");
        delete local;
        return Status::SUCCESS;
    }

    Status connect(const std::string& name) override {
        if (name == agent) return Status::SUCCESS;
        const auto door = door_of(name);
        if (!door) return Status::NOT_FOUND;
        Error error;
        polyrail_segment segment;
        return door->open(segment, error) == POLYRAIL_OK ? Status::SUCCESS : error.told("connecting to \"" + name + "\"");
    }

    Status disconnect(const std::string& name) override {
        const std::lock_guard guard(peers_lock);
        peers.erase(name);
        doors.erase(name);
        return Status::SUCCESS;
    }

    Status unload(Metadata* metadata) override {
        delete metadata;
        return Status::SUCCESS;
    }

    Status prepare(const Op& op, const Pieces& local, const Pieces& remote, const std::string& name, Request*& request,
                   const Terms*) const override {
        return guarded([&] {
            auto transfer = std::make_unique<Transfer>();
            transfer->peer = name;
            transfer->door = door_of(name);
            std::set<Remote*> lost;
            int code = POLYRAIL_OK;
            Status status = Status::SUCCESS;
            for (int round = 0; round < 2; ++round) {
                Plan plan(op, local, remote);
                status = plan.make(engine, lost, transfer->prepared, code);
                transfer->locals = std::move(plan.locals);
                if (code != POLYRAIL_ERROR_PEER_LOST) break;
                // What was opened before the peer was lost may be there again.
                lost = std::move(plan.remotes);
            }
            if (status != Status::SUCCESS) return status;
            const std::lock_guard guard(transfers_lock);
            transfers.insert(transfer.get());
            request = transfer.release();
            return Status::SUCCESS;
        });
    }

    Status post(const Op&, const Pieces&, const Pieces&, const std::string&, Request*& request,
                const Terms* terms) const override {
        return guarded([&] {
            auto& transfer = *static_cast<Transfer*>(request);
            const std::lock_guard guard(transfer.lock);
            if (transfer.batch.bits != 0 && transfer.status == Status::IN_PROGRESS &&
                look(transfer, 0) == Status::IN_PROGRESS)
                return Status::REPOST_ACTIVE;
            transfer.has_notification = terms != nullptr && terms->has_notification;
            transfer.parts = 0;
            if (transfer.has_notification) {
                if (!transfer.door) return Status::NOT_FOUND;
                // The last goes when the bytes are there.
                const Status told =
                    tell_parts(*transfer.door, terms->notification, transfer.parts, transfer.notification);
                if (told != Status::SUCCESS) return told;
            }
            return post_now(transfer);
        });
    }

    Status check(Request* request) const override {
        return guarded([&] {
            auto& transfer = *static_cast<Transfer*>(request);
            const std::lock_guard guard(transfer.lock);
            if (transfer.waits) return post_now(transfer);
            if (transfer.status != Status::IN_PROGRESS) return transfer.status;
            const bool is_all_it_does = last_checked.exchange(request, std::memory_order_relaxed) == request;
            return look(transfer, is_all_it_does ? PATIENCE : 0);
        });
    }

    Status release(Request* request) const override {
        return guarded([&] {
            auto* transfer = static_cast<Transfer*>(request);
            if (!let_go(*transfer)) return Status::REPOST_ACTIVE;
            {
                const std::lock_guard guard(transfers_lock);
                transfers.erase(transfer);
            }
            delete transfer;
            return Status::SUCCESS;
        });
    }

    Status public_data(const Metadata* memory, std::string& data) const override {
        const auto number = static_cast<const Local*>(memory)->number;
        data.assign(reinterpret_cast<const char*>(&self->incarnation), sizeof self->incarnation);
        data.append(reinterpret_cast<const char*>(&number), sizeof number);
        return Status::SUCCESS;
    }

    Status connection_info(std::string& info) const override {
        info = "polyrail1 " + advertised + " " + hexadecimal(self->incarnation);
        return Status::SUCCESS;
    }

    Status load_connection_info(const std::string& name, const std::string& info) override {
        return guarded([&] {
            if (name == agent) return Status::SUCCESS;
            std::istringstream words(info);
            std::string version;
            auto peer = std::make_shared<Peer>();
            words >> version >> peer->address >> std::hex >> peer->incarnation;
            if (!words || version != "polyrail1") {
                say("what \"" + name + "\" says of its connection is not of this version of polyrail: " + info);
                return Status::MISMATCH;
            }
            peer->agent = name;
            const std::lock_guard guard(peers_lock);
            peers[name] = peer;
            doors[name] = std::make_shared<Door>(engine, peer, 0);
            return Status::SUCCESS;
        });
    }

    Status load_remote(const Registered& memory, const Memory&, const std::string& name, Metadata*& made) override {
        return guarded([&] {
            std::shared_ptr<const Peer> peer;
            {
                const std::shared_lock guard(peers_lock);
                if (const auto found = peers.find(name); found != peers.end()) peer = found->second;
            }
            if (!peer) return Status::NOT_FOUND;
            std::uint64_t said[2];
            if (memory.info.size() != sizeof said) return Status::MISMATCH;
            std::memcpy(said, memory.info.data(), sizeof said);
            if (said[0] != peer->incarnation) {
                say("memory of \"" + name + "\" is of another start of it than its connection");
                return Status::MISMATCH;
            }
            auto remote = std::make_unique<Remote>();
            remote->base = memory.address;
            remote->door = std::make_unique<Door>(engine, peer, said[1]);
            made = remote.release();
            return Status::SUCCESS;
        });
    }

    Status load_local(Metadata* memory, Metadata*& made) override {
        return guarded([&] {
            const auto* local = static_cast<const Local*>(memory);
            auto remote = std::make_unique<Remote>();
            remote->base = local->base;
            if (local->is_file) {
                remote->file = local->segment;
            } else {
                remote->door = std::make_unique<Door>(engine, self, local->number);
            }
            made = remote.release();
            return Status::SUCCESS;
        });
    }

    Status take_notifications(Notifications& into) override {
        return guarded([&] {
            const std::lock_guard guard(mailbox_lock);
            auto notification = POLYRAIL_NEW(polyrail_notification);
            while (polyrail_notification_take(engine, 0, &notification, nullptr) == POLYRAIL_OK) {
                std::string bytes(notification.length, 0);
                polyrail_notification_bytes(reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size(), nullptr, nullptr);
                mailbox.put(notification.incarnation, bytes, into);
            }
            return Status::SUCCESS;
        });
    }

    Status notify(const std::string& name, const std::string& text) const override {
        return guarded([&] {
            const auto door = door_of(name);
            if (!door) return Status::NOT_FOUND;
            std::uint64_t id = 0;
            std::string last;
            const Status told = tell_parts(*door, text, id, last);
            return told == Status::SUCCESS ? tell(*door, last) : told;
        });
    }

    Status estimate(const Op&, const Pieces& local, const Pieces&, const std::string&, Request* const&,
                    std::chrono::microseconds& duration, std::chrono::microseconds& margin, CostMethod& method,
                    const void*) const override {
        return guarded([&] {
            double rate = 0;
            std::vector<polyrail_device> devices(64, POLYRAIL_NEW(polyrail_device));
            std::size_t count = 0;
            polyrail_engine_devices(engine, devices.data(), devices.size(), &count, nullptr);
            for (std::size_t index = 0; index < std::min(count, devices.size()); ++index)
                rate += static_cast<double>(devices[index].bytes_per_sec);
            // Nothing has been moved yet, so nothing has been learned.
            if (rate <= 0) return Status::NOT_SUPPORTED;
            double bytes = 0;
            for (std::size_t index = 0; index < local.size(); ++index) bytes += static_cast<double>(local[index].length);
            const double time = bytes / rate * 1e6 + 50;
            duration = std::chrono::microseconds(static_cast<std::int64_t>(time));
            margin = std::chrono::microseconds(static_cast<std::int64_t>(time / 2));
            method = CostMethod::ANALYTICAL;
            return Status::SUCCESS;
        });
    }

private:
    // Nothing is thrown into NIXL.
    template <typename Action>
    static Status guarded(const Action& action) {
        try {
            return action();
        } catch (const std::exception& error) {
            say(error.what());
            return Status::BACKEND;
        }
    }

    bool start(const Parameters& parameters) {
        if (agent.size() > AGENT_NAME_BYTES_MAX) {
            say("the agent's name has " + std::to_string(agent.size()) + " bytes: up to 4096 are possible");
            return false;
        }
        auto options = POLYRAIL_NEW(polyrail_options);
        const auto said = configuration(parameters, agent);
        std::vector<polyrail_parameter> pairs;
        for (const auto& [key, value] : said) pairs.push_back({key.c_str(), value.c_str()});
        options.environment = 1;
        options.parameters = pairs.data();
        options.parameter_count = pairs.size();
        auto own = std::make_shared<Peer>();
        std::random_device random;
        own->incarnation = (static_cast<std::uint64_t>(random()) << 32) | random();
        own->agent = agent;
        const std::string name = "nixl-" + hexadecimal(own->incarnation) + "-0";
        Error error;
        char address[256];
        if (polyrail_engine_start(&options, &engine, &error) != POLYRAIL_OK ||
            polyrail_engine_listening(engine, address, sizeof address, nullptr, &error) != POLYRAIL_OK ||
            polyrail_segment_allocate(engine, name.c_str(), 4096, POLYRAIL_ACCESS_REMOTE_READ, &porch, &error) !=
                POLYRAIL_OK) {
            error.told("back end of \"" + agent + "\"");
            return false;
        }
        own->address = reachable(address, "127.0.0.1");
        advertised = reachable(address, own_address());
        self = own;
        doors[agent] = std::make_shared<Door>(engine, self, 0);
        find_kinds();
        return true;
    }

    // An address that listens everywhere, with a host that can be connected to: `[::]` hears IPv4 too.
    static std::string reachable(const std::string& address, const std::string& host) {
        const bool is_any = address.starts_with("0.0.0.0:") || address.starts_with("[::]:");
        return is_any ? host + address.substr(address.rfind(':')) : address;
    }

    // The address that this host has for others: that of the device of its default route.
    static std::string own_address() {
        const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(9);
        inet_pton(AF_INET, "192.0.2.1", &address.sin_addr);
        socklen_t length = sizeof address;
        char text[INET_ADDRSTRLEN] = "127.0.0.1";
        // Nothing is sent.
        if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
            getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0)
            inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
        close(socket);
        return text;
    }

    void find_kinds() {
        kinds = {Memory::DRAM, Memory::FILE};
        std::vector<polyrail_transport_info> rows(32, POLYRAIL_NEW(polyrail_transport_info));
        std::size_t count = 0;
        polyrail_engine_transports(engine, rows.data(), rows.size(), &count, nullptr);
        for (std::size_t index = 0; index < std::min(count, rows.size()); ++index)
            if (std::strcmp(rows[index].name, "cuda") == 0 && rows[index].available == 1) kinds.push_back(Memory::VRAM);
    }

    // NIXL names a file by its descriptor.
    void open_file(const Registered& memory, const std::string& name, Local& local, Error& error) const {
        auto terms = POLYRAIL_NEW(polyrail_file_terms);
        terms.offset = memory.address;
        terms.bytes = memory.length;
        const std::string path = "/proc/self/fd/" + std::to_string(memory.device);
        if (polyrail_segment_open_file(engine, path.c_str(), &terms, &local.segment, &error) == POLYRAIL_OK)
            polyrail_segment_offer(local.segment, name.c_str(), POLYRAIL_ACCESS_REMOTE_READ_WRITE, &error);
    }

    std::shared_ptr<Door> door_of(const std::string& name) const {
        const std::shared_lock guard(peers_lock);
        const auto found = doors.find(name);
        return found == doors.end() ? nullptr : found->second;
    }

    Status tell(Door& door, const std::string& bytes) const {
        Error error;
        polyrail_delivery delivery{};
        const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
        const int code = door.with(error, [&](polyrail_segment segment) {
            return polyrail_notify(segment, first, bytes.size(), &delivery, &error);
        });
        if (code != POLYRAIL_OK) return error.told("telling \"" + door.peer->agent + "\" something");
        remember(door.peer->agent, delivery);
        return Status::SUCCESS;
    }

    // What a peer was told last: when it has that, it has all.
    void remember(const std::string& name, polyrail_delivery delivery) const {
        const std::lock_guard guard(deliveries_lock);
        polyrail_delivery& last = deliveries[name];
        polyrail_delivery_free(last, nullptr);
        last = delivery;
    }

    // Tells all of a notification but its `last` frame. `id`: of a long one; 0: it is short.
    Status tell_parts(Door& door, std::string_view rest, std::uint64_t& id, std::string& last) const {
        id = rest.size() > PART_BYTES ? next_long++ : 0;
        for (; rest.size() > PART_BYTES; rest.remove_prefix(PART_BYTES)) {
            const std::string part = frame(Frame::PART, id, agent, rest.substr(0, PART_BYTES));
            if (const Status status = tell(door, part); status != Status::SUCCESS) return status;
        }
        last = frame(id == 0 ? Frame::WHOLE : Frame::LAST, id, agent, rest);
        return Status::SUCCESS;
    }

    Status post_now(Transfer& transfer) const {
        auto terms = POLYRAIL_NEW(polyrail_terms);
        terms.has_room_within = 1;
        if (transfer.has_notification) {
            terms.notification = reinterpret_cast<const std::uint8_t*>(transfer.notification.data());
            terms.notification_length = transfer.notification.size();
        }
        if (transfer.batch.bits != 0) polyrail_batch_free(transfer.batch, nullptr);
        transfer.batch = {};
        auto status = POLYRAIL_NEW(polyrail_status);
        Error error;
        const int code = polyrail_prepared_post_or_finish(transfer.prepared, &terms, &transfer.batch, &status, &error);
        // Too much is under way: nothing that NIXL's programs could do about it, so it is done here.
        transfer.waits = code == POLYRAIL_ERROR_FULL;
        if (transfer.waits) return transfer.status = Status::IN_PROGRESS;
        if (code != POLYRAIL_OK) {
            forget_parts(transfer);
            return transfer.status = error.told("a transfer with \"" + transfer.peer + "\"");
        }
        polyrail_delivery delivery{};
        if (transfer.has_notification && polyrail_batch_delivery(transfer.batch, &delivery, nullptr) == POLYRAIL_OK)
            remember(transfer.peer, delivery);
        return judge(transfer, status);
    }

    Status look(Transfer& transfer, std::uint64_t patience) const {
        auto status = POLYRAIL_NEW(polyrail_status);
        patience > 0 ? polyrail_batch_wait(transfer.batch, patience, &status, nullptr)
                     : polyrail_batch_status(transfer.batch, &status, nullptr);
        return judge(transfer, status);
    }

    Status judge(Transfer& transfer, const polyrail_status& status) const {
        transfer.status = said(transfer.batch, status, transfer.peer);
        if (transfer.status != Status::SUCCESS && transfer.status != Status::IN_PROGRESS) forget_parts(transfer);
        return transfer.status;
    }

    // Ends a transfer, and whether nobody reads or writes its memory any more. NIXL up to 1.5 asks a second time and then
    // takes the memory back whatever it is answered, and at once where it knows that the transfer has ended: so this waits
    // for proof then, and does not otherwise.
    bool let_go(Transfer& transfer) const {
        const std::lock_guard guard(transfer.lock);
        const bool is_taken_back = transfer.is_refused || transfer.status != Status::IN_PROGRESS;
        give_up_waiting(transfer);
        if (!is_held(transfer.batch)) {
            if (transfer.status == Status::IN_PROGRESS) look(transfer, 0);
            return true;
        }
        polyrail_batch_cancel(transfer.batch, nullptr);
        // What was not on its way yet ends at once.
        const auto end = Clock::now() + std::chrono::nanoseconds(is_taken_back ? LETTING_GO : 2 * MILLISECOND);
        polyrail_batch_wait(transfer.batch, is_taken_back ? LETTING_GO : 2 * MILLISECOND, nullptr, nullptr);
        while (is_held(transfer.batch) && Clock::now() < end)
            polyrail_batch_wait_released(transfer.batch, 10 * MILLISECOND, nullptr, nullptr);
        transfer.is_refused = is_held(transfer.batch);
        if (transfer.is_refused && is_taken_back)
            say("memory of a transfer with \"" + transfer.peer + "\" is still read or written: do not use it");
        return !transfer.is_refused;
    }

    void cancel_all_with(const Metadata* local) const {
        const std::lock_guard guard(transfers_lock);
        for (Transfer* transfer : transfers) {
            if (!transfer->locals.contains(local)) continue;
            const std::lock_guard its(transfer->lock);
            give_up_waiting(*transfer);
            polyrail_batch_cancel(transfer->batch, nullptr);
        }
    }

    // One that there has been no room for is not posted any more.
    static void give_up_waiting(Transfer& transfer) {
        if (std::exchange(transfer.waits, false)) transfer.status = Status::CANCELED;
    }

    // The end of a long notification will not come.
    void forget_parts(Transfer& transfer) const {
        if (transfer.parts == 0) return;
        const std::string bytes = frame(Frame::FORGET, transfer.parts, agent, "");
        polyrail_segment segment;
        Error error;
        if (transfer.door->open(segment, error) == POLYRAIL_OK)
            polyrail_notify(segment, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), nullptr, nullptr);
        transfer.parts = 0;
    }

    polyrail_engine engine{};
    // A segment that peers open to tell us something, though no memory of ours may be registered.
    polyrail_segment porch{};
    std::shared_ptr<const Peer> self;
    std::string advertised;
    Memories kinds;
    std::atomic<std::uint64_t> next_segment{1};
    mutable std::atomic<std::uint64_t> next_long{1};
    mutable std::atomic<const void*> last_checked{nullptr};

    mutable std::shared_mutex peers_lock;
    std::map<std::string, std::shared_ptr<const Peer>> peers;
    std::map<std::string, std::shared_ptr<Door>> doors;

    mutable std::mutex transfers_lock;
    // All that NIXL has not released, or could not.
    mutable std::set<Transfer*> transfers;
    mutable std::mutex deliveries_lock;
    mutable std::map<std::string, polyrail_delivery> deliveries;
    std::mutex mailbox_lock;
    Mailbox mailbox;
};

namespace {

Engine* create(const Creation* creation) {
    try {
        return new Backend(*creation);
    } catch (const std::exception& error) {
        say(error.what());
        return nullptr;
    }
}

// Those of docs/config.md that are asked for most; all others are possible too.
Parameters options() {
    return {{"listen", ""}, {"rails", ""}, {"insecure", ""}, {"workers", ""}, {"policy", ""}};
}

Plugin plugin{PLUGIN_VERSION,
              create,
              [](Engine* engine) { delete engine; },
              [] { return "POLYRAIL"; },
              [] { return polyrail_version(); },
              options,
              [] { return Memories{Memory::DRAM, Memory::VRAM, Memory::FILE}; }};

}  // namespace
}  // namespace polyrail_nixl

extern "C" __attribute__((visibility("default"))) nixl_interface::Plugin* nixl_plugin_init() {
    return polyrail_nixl::is_tested(__builtin_return_address(0)) ? &polyrail_nixl::plugin : nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini() {}
