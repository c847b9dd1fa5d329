// Notifications as they go over the wire, and long ones put together.
#pragma once

#include <cstring>
#include <map>

#include "shared.hpp"

namespace polyrail_nixl {

using namespace nixl_interface;

// What a frame of ours is.
enum class Frame : std::uint8_t { WHOLE = 0, PART = 1, LAST = 2, FORGET = 3 };

// A notification as it goes over the wire: what it is, of which long one, the sender's name, the text.
inline std::string frame(Frame kind, std::uint64_t id, const std::string& agent, std::string_view text) {
    std::string made(1, static_cast<char>(kind));
    const auto length = static_cast<std::uint16_t>(agent.size());
    made.append(reinterpret_cast<const char*>(&id), sizeof id);
    made.append(reinterpret_cast<const char*>(&length), sizeof length);
    return made.append(agent).append(text);
}

// Puts together what has come in parts.
class Mailbox {
public:
    void put(std::uint64_t incarnation, const std::string& bytes, Notifications& into) {
        std::uint64_t id = 0;
        std::uint16_t length = 0;
        constexpr std::size_t head = 1 + sizeof id + sizeof length;
        if (bytes.size() < head) return;
        std::memcpy(&id, bytes.data() + 1, sizeof id);
        std::memcpy(&length, bytes.data() + 1 + sizeof id, sizeof length);
        if (bytes.size() < head + length) return;
        std::string agent = bytes.substr(head, length), text = bytes.substr(head + length);
        const auto key = std::pair(incarnation, id);
        switch (static_cast<Frame>(bytes[0])) {
            case Frame::WHOLE: into.emplace_back(std::move(agent), std::move(text)); break;
            case Frame::PART: parts[key] += text; break;
            case Frame::LAST:
                into.emplace_back(std::move(agent), parts[key] + text);
                parts.erase(key);
                break;
            case Frame::FORGET: parts.erase(key); break;
        }
    }

private:
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> parts;
};

}  // namespace polyrail_nixl
