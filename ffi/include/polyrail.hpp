/* polyrail for C++17: owners of handles, and exceptions, around polyrail.h. Nothing else is in here: what is not wrapped
 * is called by its C function with `get()`. docs/c.md is the guide. */
#ifndef POLYRAIL_HPP
#define POLYRAIL_HPP

#include "polyrail.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace polyrail {

/* What a call answered when it did not answer 0. */
class Error : public std::runtime_error {
  public:
    explicit Error(const polyrail_error &said) : std::runtime_error(said.message), code_(said.code), index_(said.index) {}

    /* One of POLYRAIL_ERROR_…. */
    std::int32_t code() const noexcept { return code_; }
    /* Which request is at fault; -1: it is not about one. */
    std::int64_t index() const noexcept { return index_; }

  private:
    std::int32_t code_;
    std::int64_t index_;
};

/* Calls a function of polyrail.h, and throws what it says went wrong. */
template <typename Function, typename... Arguments> void call(Function function, Arguments... arguments)
{
    polyrail_error said = POLYRAIL_NEW(polyrail_error);
    if (function(arguments..., &said) != POLYRAIL_OK)
        throw Error(said);
}

/* A span as the functions take it; longer than they can say is for ever. */
inline std::uint64_t nanoseconds(std::chrono::nanoseconds span)
{
    return span.count() < 0 ? 0 : static_cast<std::uint64_t>(span.count());
}

/* Owns a handle: moved, never copied, freed once. A function that frees says nothing here: the handle is a good one. */
template <typename Handle, std::int32_t (*Free)(Handle, polyrail_error *)> class Owner {
  public:
    Owner() noexcept : handle_() {}
    explicit Owner(Handle handle) noexcept : handle_(handle) {}
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, Handle())) {}
    Owner &operator=(Owner &&other) noexcept
    {
        Owner taken(std::move(other));
        std::swap(handle_, taken.handle_);
        return *this;
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    ~Owner()
    {
        if (handle_.bits != 0)
            Free(handle_, nullptr);
    }

    Handle get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_.bits != 0; }
    /* Gives the handle away: whoever takes it frees it. */
    Handle release() noexcept { return std::exchange(handle_, Handle()); }

  private:
    Handle handle_;
};

class Segment : public Owner<polyrail_segment, polyrail_segment_free> {
  public:
    using Owner::Owner;

    polyrail_segment_info look() const
    {
        polyrail_segment_info info = POLYRAIL_NEW(polyrail_segment_info);
        call(polyrail_segment_look, get(), &info);
        return info;
    }

    /* Closes a segment of a peer's, of which nothing is left then. The destructor does that too, but without a word where
     * requests have not ended. */
    void close()
    {
        call(polyrail_segment_close, get());
        release();
    }
};

class Batch : public Owner<polyrail_batch, polyrail_batch_free> {
  public:
    using Owner::Owner;

    polyrail_status status() const
    {
        polyrail_status status = POLYRAIL_NEW(polyrail_status);
        call(polyrail_batch_status, get(), &status);
        return status;
    }

    /* How it ended; nothing: it has not, in time. */
    std::optional<polyrail_status> wait(std::chrono::nanoseconds timeout) const
    {
        polyrail_status status = POLYRAIL_NEW(polyrail_status);
        polyrail_error said = POLYRAIL_NEW(polyrail_error);
        std::int32_t code = polyrail_batch_wait(get(), nanoseconds(timeout), &status, &said);
        if (code == POLYRAIL_ERROR_TIMED_OUT)
            return std::nullopt;
        if (code != POLYRAIL_OK)
            throw Error(said);
        return status;
    }

    polyrail_report report(std::size_t index) const
    {
        polyrail_report report = POLYRAIL_NEW(polyrail_report);
        call(polyrail_batch_report, get(), index, &report);
        return report;
    }

    void cancel() const { call(polyrail_batch_cancel, get()); }
};

/* The ends of many batches in one place. */
class Queue : public Owner<polyrail_queue, polyrail_queue_free> {
  public:
    Queue() : Owner(create()) {}

    void add(const Batch &batch, std::uint64_t tag) const { call(polyrail_queue_add, get(), batch.get(), tag); }

    int descriptor() const
    {
        int descriptor = -1;
        call(polyrail_queue_descriptor, get(), &descriptor);
        return descriptor;
    }

    /* Nothing: no batch has ended in time. */
    std::optional<polyrail_completion> take(std::chrono::nanoseconds timeout) const
    {
        polyrail_completion completion = POLYRAIL_NEW(polyrail_completion);
        polyrail_error said = POLYRAIL_NEW(polyrail_error);
        std::int32_t code = polyrail_queue_take(get(), nanoseconds(timeout), &completion, &said);
        if (code == POLYRAIL_ERROR_EMPTY)
            return std::nullopt;
        if (code != POLYRAIL_OK)
            throw Error(said);
        return completion;
    }

  private:
    static polyrail_queue create()
    {
        polyrail_queue queue{};
        call(polyrail_queue_create, &queue);
        return queue;
    }
};

/* Requests that are posted many times. */
class Prepared : public Owner<polyrail_prepared, polyrail_prepared_free> {
  public:
    using Owner::Owner;

    Batch post(const polyrail_terms *terms = nullptr) const
    {
        polyrail_batch batch{};
        call(polyrail_prepared_post, get(), terms, &batch);
        return Batch(batch);
    }

    /* The same, but what has been carried out by the time that it returns has no batch: it is null then. */
    Batch post_or_finish(polyrail_status &status, const polyrail_terms *terms = nullptr) const
    {
        polyrail_batch batch{};
        call(polyrail_prepared_post_or_finish, get(), terms, &batch, &status);
        return Batch(batch);
    }
};

class Engine : public Owner<polyrail_engine, polyrail_engine_free> {
  public:
    /* From a text in JSON. One that lets peers in later keeps them waiting until `let_in`. */
    explicit Engine(const std::string &config, bool lets_in_later = false) : Owner(start(config, lets_in_later)) {}
    explicit Engine(const polyrail_options &options) : Owner(start(options)) {}

    /* Lets peers in, now that the segments that they ask for are there. */
    void let_in() const { call(polyrail_engine_let_in, get()); }

    std::string listening() const
    {
        char text[128];
        std::size_t length = 0;
        call(polyrail_engine_listening, get(), text, sizeof text, &length);
        return std::string(text, length);
    }

    Segment allocate(const std::string &name, std::uint64_t bytes, std::uint32_t access) const
    {
        polyrail_segment segment{};
        call(polyrail_segment_allocate, get(), name.c_str(), bytes, access, &segment);
        return Segment(segment);
    }

    /* The memory stays as it is until the segment or the engine is gone. */
    Segment register_memory(const std::string &name, void *base, std::uint64_t bytes, std::uint32_t access) const
    {
        polyrail_segment segment{};
        call(polyrail_segment_register, get(), name.c_str(), base, bytes, access, &segment);
        return Segment(segment);
    }

    /* HOST:PORT/SEGMENT; on other terms, until the peer is there, or to be followed to its next process. */
    Segment open(const std::string &address, const polyrail_open_terms *terms = nullptr) const
    {
        polyrail_segment segment{};
        call(polyrail_segment_open_with, get(), address.c_str(), terms, &segment);
        return Segment(segment);
    }

    /* What has happened to a peer, if anything does in this time. */
    std::optional<polyrail_peer_event> take_peer_event(std::chrono::nanoseconds timeout) const
    {
        polyrail_peer_event event = POLYRAIL_NEW(polyrail_peer_event);
        polyrail_error said = POLYRAIL_NEW(polyrail_error);
        std::int32_t code = polyrail_peer_event_take(get(), nanoseconds(timeout), &event, &said);
        if (code == POLYRAIL_ERROR_EMPTY)
            return std::nullopt;
        if (code != POLYRAIL_OK)
            throw Error(said);
        return event;
    }

    Batch submit(const std::vector<polyrail_request> &requests, const polyrail_terms *terms = nullptr) const
    {
        polyrail_batch batch{};
        call(polyrail_submit, get(), requests.data(), requests.size(), terms, &batch);
        return Batch(batch);
    }

    Batch submit(const std::vector<polyrail_paged_request> &requests, const polyrail_terms *terms = nullptr) const
    {
        polyrail_batch batch{};
        call(polyrail_submit_paged, get(), requests.data(), requests.size(), terms, &batch);
        return Batch(batch);
    }

    Prepared prepare(const std::vector<polyrail_request> &requests) const
    {
        polyrail_prepared prepared{};
        call(polyrail_prepare, get(), requests.data(), requests.size(), &prepared);
        return Prepared(prepared);
    }

    Prepared prepare(const std::vector<polyrail_paged_request> &requests) const
    {
        polyrail_prepared prepared{};
        call(polyrail_prepare_paged, get(), requests.data(), requests.size(), &prepared);
        return Prepared(prepared);
    }

  private:
    static polyrail_engine start(const polyrail_options &options)
    {
        polyrail_engine engine{};
        call(polyrail_engine_start, &options, &engine);
        return engine;
    }

    static polyrail_engine start(const std::string &config, bool lets_in_later)
    {
        polyrail_options options = POLYRAIL_NEW(polyrail_options);
        options.config = config.c_str();
        options.lets_in_later = lets_in_later;
        return start(options);
    }
};

/* A request of one direction or the other, with its size set. */
inline polyrail_request request(std::uint32_t op, const Segment &local, std::uint64_t local_offset,
                                const Segment &remote, std::uint64_t remote_offset, std::uint64_t length)
{
    polyrail_request made = POLYRAIL_NEW(polyrail_request);
    made.op = op;
    made.local = local.get();
    made.local_offset = local_offset;
    made.remote = remote.get();
    made.remote_offset = remote_offset;
    made.length = length;
    return made;
}

} // namespace polyrail

#endif
