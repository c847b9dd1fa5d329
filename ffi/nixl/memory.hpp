// Memory of ours and of peers, and where peers are.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "shared.hpp"

namespace polyrail_nixl {

using namespace nixl_interface;

inline std::string hexadecimal(std::uint64_t number) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
    return text;
}

// A peer's engine, or ours, as the place that segments are opened at.
struct Peer {
    std::string agent;
    std::string address;
    // Drawn when its engine was made: in the names of its segments, so that none of another engine is ever opened for it.
    std::uint64_t incarnation = 0;

    std::string segment(std::uint64_t number) const {
        return address + "/nixl-" + hexadecimal(incarnation) + "-" + std::to_string(number);
    }
};

// A segment at a peer, opened when it is first needed.
class Door {
public:
    Door(polyrail_engine engine, std::shared_ptr<const Peer> peer, std::uint64_t number)
        : engine(engine), peer(std::move(peer)), number(number) {}
    ~Door() { polyrail_segment_free(segment, nullptr); }
    Door(const Door&) = delete;

    // `is_lost`: the last one is not good any more.
    int open(polyrail_segment& into, Error& error, bool is_lost = false) {
        const std::lock_guard guard(lock);
        if (is_lost) {
            polyrail_segment_free(segment, nullptr);
            segment = {};
        }
        if (segment.bits == 0) {
            const int code = polyrail_segment_open(engine, peer->segment(number).c_str(), &segment, &error);
            if (code != POLYRAIL_OK) return code;
        }
        into = segment;
        return POLYRAIL_OK;
    }

    // Does something with the segment, and once more if its peer was lost since it was opened and may be back.
    int with(Error& error, const std::function<int(polyrail_segment)>& action) {
        polyrail_segment opened;
        int code = open(opened, error);
        if (code == POLYRAIL_OK) code = action(opened);
        if (code != POLYRAIL_ERROR_PEER_LOST) return code;
        code = open(opened, error, true);
        return code == POLYRAIL_OK ? action(opened) : code;
    }

    const polyrail_engine engine;
    const std::shared_ptr<const Peer> peer;

private:
    const std::uint64_t number;
    std::mutex lock;
    polyrail_segment segment{};
};

// Memory or a file of ours.
struct Local : Metadata {
    polyrail_segment segment{};
    std::uintptr_t base = 0;
    std::uint64_t number = 0;
    bool is_file = false;
};

// Memory of a peer, or what a local transfer goes to: memory by way of our own port, files directly.
struct Remote : Metadata {
    std::unique_ptr<Door> door;
    polyrail_segment file{};
    std::uintptr_t base = 0;

    int open(polyrail_segment& into, Error& error, bool is_lost = false) {
        if (door) return door->open(into, error, is_lost);
        into = file;
        return POLYRAIL_OK;
    }
};

}  // namespace polyrail_nixl
