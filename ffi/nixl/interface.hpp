// What NIXL 1.x and its back ends agree on in memory: the order of virtual functions, the places of members, the numbers of
// enumerations. Written from what the public interface of ai-dynamo/nixl says, in our words: no line of NIXL's is here, and
// none is needed to build. `tests/test_interface.py` compares the order with that of the wheel's own UCX back end.
//
// Only what the shim touches has a name. C++20 and libstdc++ with the cxx11 strings, as NIXL's wheels.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nixl_interface {

// The version of `Plugin` that NIXL 1.0 to 1.5 ask for.
constexpr int PLUGIN_VERSION = 1;

enum class Status : int {
    IN_PROGRESS = 1,
    SUCCESS = 0,
    NOT_POSTED = -1,
    INVALID_PARAMETER = -2,
    BACKEND = -3,
    NOT_FOUND = -4,
    MISMATCH = -5,
    NOT_ALLOWED = -6,
    REPOST_ACTIVE = -7,
    UNKNOWN = -8,
    NOT_SUPPORTED = -9,
    REMOTE_DISCONNECT = -10,
    CANCELED = -11,
};

enum class Op : int { READ = 0, WRITE = 1 };
enum class Memory : int { DRAM = 0, VRAM = 1, BLOCK = 2, OBJECT = 3, FILE = 4 };
enum class CostMethod : int { ANALYTICAL = 0 };

using Parameters = std::unordered_map<std::string, std::string>;
using Memories = std::vector<Memory>;
using Notifications = std::vector<std::pair<std::string, std::string>>;

// What a back end keeps of registered memory, ours or a peer's.
class Metadata {
public:
    virtual ~Metadata() = default;

private:
    bool is_private = false;
};

// What a back end keeps of a transfer.
class Request {
public:
    virtual ~Request() = default;
};

// A range, as it is registered: with what the owner's `public_data` said of it, or the path of a file.
struct Registered {
    std::uintptr_t address;
    std::size_t length;
    std::uint64_t device;
    std::string info;
};

// A range, as it is moved.
struct Piece {
    std::uintptr_t address;
    std::size_t length;
    std::uint64_t device;
    Metadata* metadata;
};

// A list of ranges. NIXL makes them.
class Pieces {
public:
    virtual ~Pieces() = 0;
    std::size_t size() const { return pieces.size(); }
    const Piece& operator[](std::size_t index) const { return pieces[index]; }

private:
    Memory kind;
    std::vector<Piece> pieces;
};

struct Terms {
    std::string notification;
    bool has_notification = false;
    // NIXL 1.x has more here.
};

// What an engine is created with. NIXL makes it, and has more members behind these.
struct Creation {
    std::string agent;
    std::string type;
    Parameters* parameters;
};

// The base of back ends. NIXL reads its members by their places.
class Engine {
public:
    explicit Engine(const Creation& creation)
        : type(creation.type), parameters(*creation.parameters), agent(creation.agent) {}
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    virtual ~Engine() = default;
    virtual bool supports_remote() const = 0;
    virtual bool supports_local() const = 0;
    virtual bool supports_notifications() const = 0;
    virtual Memories memories() const = 0;
    virtual Status register_memory(const Registered& memory, const Memory& kind, Metadata*& made) = 0;
    virtual Status deregister_memory(Metadata* memory) = 0;
    virtual Status connect(const std::string& agent) = 0;
    virtual Status disconnect(const std::string& agent) = 0;
    virtual Status unload(Metadata* metadata) = 0;
    virtual Status prepare(const Op& op, const Pieces& local, const Pieces& remote, const std::string& agent,
                           Request*& request, const Terms* terms) const = 0;
    virtual Status post(const Op& op, const Pieces& local, const Pieces& remote, const std::string& agent,
                        Request*& request, const Terms* terms) const = 0;
    virtual Status check(Request* request) const = 0;
    virtual Status release(Request* request) const = 0;
    virtual Status view_of_remote(const void*, void*&, const Terms*) const { return Status::NOT_SUPPORTED; }
    virtual Status view_of_local(const void*, void*&, const Terms*) const { return Status::NOT_SUPPORTED; }
    virtual void release_view(void*) const {}
    virtual Status public_data(const Metadata* memory, std::string& data) const = 0;
    virtual Status connection_info(std::string& info) const = 0;
    virtual Status load_connection_info(const std::string& agent, const std::string& info) = 0;
    virtual Status load_remote(const Registered& memory, const Memory& kind, const std::string& agent,
                               Metadata*& made) = 0;
    virtual Status load_local(Metadata* memory, Metadata*& made) = 0;
    virtual Status take_notifications(Notifications& into) = 0;
    virtual Status notify(const std::string& agent, const std::string& text) const = 0;
    virtual Status query(const void*, void*) const { return Status::NOT_SUPPORTED; }
    virtual Status estimate(const Op& op, const Pieces& local, const Pieces& remote, const std::string& agent,
                            Request* const& request, std::chrono::microseconds& duration,
                            std::chrono::microseconds& margin, CostMethod& method, const void* terms) const = 0;

private:
    std::string type;
    Parameters parameters;
    // Events for NIXL's telemetry: none of ours. Its own counters are of every back end.
    std::vector<char> events;
    std::mutex events_lock;

protected:
    // NIXL asks this after creation, and destroys the engine if it is true.
    bool has_failed = false;
    const std::string agent;

private:
    const bool tells_events = false;
};

static_assert(sizeof(void*) == 8 && sizeof(std::string) == 32 && sizeof(Parameters) == 56 && sizeof(std::mutex) == 40,
              "a C++ library that NIXL's wheels do not have");
static_assert(sizeof(Piece) == 32 && sizeof(Registered) == 56 && sizeof(Pieces) == 40 && sizeof(Engine) == 208,
              "a layout that NIXL's wheels do not have");

// What a back end's library hands to NIXL.
struct Plugin {
    int version;
    Engine* (*create)(const Creation* creation);
    void (*destroy)(Engine* engine);
    const char* (*name)();
    const char* (*version_text)();
    Parameters (*options)();
    Memories (*memories)();
};

}  // namespace nixl_interface
