from collections.abc import Generator, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self, SupportsIndex, TypeAlias, final

from typing_extensions import Buffer, disjoint_base

from polyrail._types import Peer, Stats, SupportsArray, SupportsCudaArray, SupportsDLPack
from polyrail._words import DeliveryStatus, Status

__all__ = [
    "__version__",
    "NOTIFICATION_BYTES_MAX",
    "Engine",
    "Segment",
    "Memory",
    "File",
    "Remote",
    "Batch",
    "Summary",
    "Report",
    "Reports",
    "Blocks",
    "PagedRequest",
    "Prepared",
    "Notification",
    "Notifications",
    "Delivery",
    "PeerEvent",
    "PeerEvents",
    "CompletionQueue",
    "ArrivalWatch",
    "Regions",
    "submit_at",
    "close_all",
    "log_to_queue",
    "next_record",
    "end_log",
    "forget_log",
    "run_program",
]

_Numbers: TypeAlias = SupportsIndex | Buffer | SupportsArray | SupportsDLPack
_Access: TypeAlias = Literal["local", "read", "read-write"]
_Op: TypeAlias = Literal["write", "read"]
_Priority: TypeAlias = Literal["high", "normal", "low"]

__version__: Final[str]
NOTIFICATION_BYTES_MAX: Final[int]

@final
class Engine:
    """Moves bytes between memory and files here and at peers.

    `config`: a dictionary or the path of a file in JSON; its keys are those of docs/config.md, and so are the keywords, which win.
    Environment variables `POLYRAIL_<KEY>` stand between the two.
    `lets_in_later`: peers wait until `let_in`, for who wants to register first what they open.
    """

    def __new__(
        cls, config: dict[str, Any] | str | PathLike[str] | None = None, *, lets_in_later: bool = False, **keys: Any
    ) -> Self: ...
    @property
    def name(self) -> str:
        """What it calls itself to peers."""
    @property
    def listening(self) -> str | None:
        """`"HOST:PORT"` where it listens; `None`: it does not."""
    def let_in(self) -> None:
        """Lets peers in, where `lets_in_later` has kept them out. Again, or without that: does nothing."""
    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
    def register(
        self,
        buffer: Buffer | SupportsDLPack | SupportsCudaArray | tuple[int, int],
        name: str | None = None,
        access: _Access | None = None,
        *,
        domain: str | None = None,
    ) -> Memory:
        """Makes memory of the program a segment, until it is closed or the engine is.

        `buffer`: what has the buffer protocol, `__cuda_array_interface__` or `__dlpack__`, without gaps; it is kept, and what has the
        buffer protocol cannot be resized meanwhile. Or `(address, length)`, for which the program answers.
        `access`: what peers may do; by default nothing without a name, and with one `"read"` and, unless it is read-only, write.
        `domain`: the trust domain of the configuration whose peers can open it; nobody else hears of it.
        """
    def allocate(
        self,
        bytes: int,
        name: str | None = None,
        access: _Access | None = None,
        device: str = "cpu",
        *,
        domain: str | None = None,
    ) -> Memory:
        """Allocates memory and makes it a segment. `device`: `"cpu"` or `"cuda:N"`. `domain`: as for `register`.

        Peers on this host reach it faster than memory of the program's. Look at it with `memoryview` or `numpy.asarray`; on a GPU with
        what takes `__cuda_array_interface__`.
        """
    def open(self, address: str, *, within: float | None = None, standing: bool = False) -> Remote:
        """Opens a segment of a peer, named `"HOST:PORT/NAME"`.

        `within`: for so many seconds it tries again, with pauses that grow, until the peer is there and has the segment. Without it
        there is one try.

        `standing`: it follows its name. When the peer is lost and a process serves it at its address again, it leads there, and so
        do prepared transfers that name it. While the peer is away, submissions raise `PeerLost`. Its `nbytes` stays what it was."""
    def open_segment(self, address: str, *, within: float | None = None, standing: bool = False) -> Remote:
        """The same as `open`."""
    def file(
        self,
        path: str | PathLike[str],
        offset: int = 0,
        length: int | None = None,
        read_only: bool = False,
        cached: bool = False,
    ) -> File:
        """Makes bytes of a file or block device that exists a segment.

        `length`: by default to the end that it has now; a range that ends behind that lets a file grow. `cached`: all of it goes through
        the page cache.
        """
    def write(
        self,
        local: Memory | File,
        remote: Segment,
        length: _Numbers | None = None,
        *,
        local_offset: _Numbers | None = None,
        remote_offset: _Numbers | None = None,
        priority: _Priority = "normal",
        deadline: float | None = None,
        notify: bytes | None = None,
        arrival: int | None = None,
        visible: bool = False,
        room: float | None = None,
    ) -> Batch:
        """Starts to move bytes from here to there.

        `length` and the offsets, in bytes: one number, or an array of them such as numpy's int64, with one for each request. By default
        all of both segments from the offsets on, which has to be as much. There can be 1,000,000 requests.
        `deadline`: in seconds from now on. `notify`: what the peer's program is told once all is there. `arrival`: the tag under which
        the peer's engine counts it then: see `wait_arrivals`. `visible`: the batch has not ended before all that it has written can be seen
        by whatever looks there. `room`: how many seconds to wait for room before `Full`; by default as
        configured.
        """
    def read(
        self,
        local: Memory | File,
        remote: Segment,
        length: _Numbers | None = None,
        *,
        local_offset: _Numbers | None = None,
        remote_offset: _Numbers | None = None,
        priority: _Priority = "normal",
        deadline: float | None = None,
        notify: bytes | None = None,
        arrival: int | None = None,
        visible: bool = False,
        room: float | None = None,
    ) -> Batch:
        """Starts to move bytes from there to here; see `write`."""
    def prepare(
        self,
        op: _Op,
        local: Memory | File,
        remote: Segment,
        length: _Numbers | None = None,
        *,
        local_offset: _Numbers | None = None,
        remote_offset: _Numbers | None = None,
    ) -> Prepared:
        """Checks a transfer once, to be posted many times. Arrays are read now."""
    def submit_paged(
        self,
        requests: Sequence[PagedRequest],
        *,
        priority: _Priority = "normal",
        deadline: float | None = None,
        notify: bytes | None = None,
        arrival: int | None = None,
        visible: bool = False,
        room: float | None = None,
    ) -> Batch:
        """Starts to move blocks, as one batch with a report for each request; see `write` for the rest. Blocks that lie one behind the
        other at both ends go as one. There can be 1,000,000 blocks."""
    def prepare_paged(self, requests: Sequence[PagedRequest]) -> Prepared:
        """Checks a transfer of blocks once, to be posted many times."""
    def arrivals(self, tag: int) -> int:
        """How many batches of peers have arrived with this tag, `arrival` of `write`, since it was last forgotten. Tags go from 0 to
        2^64 - 1."""
    def wait_arrivals(self, tag: int, count: int = 1, timeout: float | None = None) -> int:
        """Waits until so many have, and gives how many have. All that they wrote can be seen then. Raises `TimedOut`, or `Closed` when
        none will come."""
    async def arrived(self, tag: int, count: int = 1) -> int:
        """The same in an event loop, without a thread."""
    def forget_arrivals(self, tag: int) -> int:
        """Begins to count a tag anew, and gives how many had arrived. 65,536 tags are counted at a time; with more, those who tell of
        another are held up."""
    def notify(self, remote: Remote, data: Buffer) -> Delivery:
        """Tells the program of the peer that owns `remote` something, at most `NOTIFICATION_BYTES_MAX` bytes. It does not wait for
        batches under way: see `notify` of `write`."""
    def notifications(self) -> Notifications:
        """What programs of peers tell this one. Each notification goes to one taker."""
    def peers(self) -> list[Peer]:
        """The peers whose segments it has opened, and up to 256 that were lost and have not come back."""
    def peer_events(self) -> PeerEvents:
        """What happens to them. Each event goes to one taker. 1,024 wait; what comes while they do is counted, and told as
        `"missed"`."""
    def stats(self) -> Stats:
        """What it has done since it started."""
    def held(self) -> list[Batch]:
        """Batches that the program has let go of, and that ended while memory here may still be touched on their behalf. That memory
        stays registered and allocated."""
    def declare_lost(self, address: str) -> bool:
        """Says, on the operator's word, that the process at this address has ended. `False`: no such peer is known."""
    def close(self) -> None:
        """Ends everything within some seconds, and lets go of all memory that nothing can touch any more."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_why: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@disjoint_base
class Segment:
    """What can be one end of a transfer."""

    @property
    def name(self) -> str:
        """What it is called; of a peer's `"HOST:PORT/NAME"`, of a file its path."""
    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
    def __len__(self) -> int: ...

@final
class Memory(Segment):
    """Memory of this process, or of a GPU. `with` closes it."""

    @property
    def address(self) -> int:
        """Where it begins."""
    @property
    def device(self) -> str:
        """`"cpu"` or `"cuda:N"`."""
    @property
    def closed(self) -> bool:
        """Whether `close` has taken it back."""
    def close(self) -> None:
        """Takes it back: when this has returned, nothing of the engine touches it any more. `InUse`: batches use it, or hold it."""
    def order_after(self, stream: int) -> None:
        """Lets what is submitted from now on to or from its GPU begin only when what is in a CUDA stream now is over."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_why: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class File(Segment):
    """Bytes of a file or block device of this host. `with` closes it."""

    @property
    def closed(self) -> bool:
        """Whether `close` has closed it."""
    def close(self) -> None:
        """Closes it. `InUse`: batches use it, or hold it."""
    def sync(self) -> None:
        """Waits until what completed batches wrote to it is on the disk."""
    def offer(self, name: str, access: _Access = "read-write") -> None:
        """Lets peers open it under a name."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_why: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Remote(Segment):
    """A segment of a peer's. `with` closes it."""

    @property
    def closed(self) -> bool:
        """Whether `close` has closed it."""
    def close(self) -> None:
        """Closes it: what is mapped of it here is unmapped, and its owner keeps its memory. `InUse`: batches use it."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_why: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Batch:
    """A transfer that was submitted. `await` it, or `wait`. Dropping it changes nothing: it goes on."""

    @property
    def status(self) -> Status:
        """How it stands: `PENDING` while it lasts; then `COMPLETED` if every request did, else how the first one ended that did not,
        but `INDETERMINATE` if any did."""
    @property
    def summary(self) -> Summary:
        """The same in numbers."""
    @property
    def done(self) -> bool:
        """Whether it has ended, however."""
    @property
    def reports(self) -> Reports:
        """How each of its requests stands."""
    @property
    def delivery(self) -> Delivery | None:
        """What becomes of the notification that it carries; `None`: it carries none."""
    def wait(self, timeout: float | None = None) -> Summary:
        """Waits until it has ended, `timeout` seconds at most. Raises `TimedOut`, or what it has ended with if not well."""
    def wait_released(self, timeout: float | None = None) -> Summary:
        """Waits until it has ended and nothing of it can move any more, on either side, however it has ended. `TimedOut`: no proof came
        in time; `Indeterminate`: none will come."""
    def cancel(self) -> None:
        """Stops sending what has not been sent. It ends soon, as `CANCELLED`, or as `COMPLETED` if all was under way."""
    def __await__(self) -> Generator[Any, None, Summary]: ...
    def __len__(self) -> int: ...

@final
class Summary:
    """A batch in numbers."""

    @property
    def status(self) -> Status:
        """How it stands."""
    @property
    def requests(self) -> int:
        """Requests in it."""
    @property
    def ended(self) -> int:
        """Requests that have ended."""
    @property
    def failed(self) -> int:
        """Requests that ended other than completed."""
    @property
    def delivered_bytes(self) -> int:
        """Bytes proven to have arrived, of the requests that have ended."""

@final
class Report:
    """How one request stands. `Status.INDETERMINATE` if and only if `local` is `"Held"` or `remote` is `"Unknown"` once it has ended."""

    @property
    def index(self) -> int:
        """Which request of its batch."""
    @property
    def status(self) -> Status:
        """How it stands."""
    @property
    def delivered_bytes(self) -> int:
        """Bytes proven to have arrived: a lower bound."""
    @property
    def cause(self) -> str | None:
        """Why, if not well."""
    @property
    def local(self) -> Literal["Released", "Held"]:
        """`"Released"`: nobody touches the memory here any more; `"Held"`: somebody might."""
    @property
    def remote(self) -> Literal["Settled", "Unknown"]:
        """`"Settled"`: nothing more can reach the peer's memory; `"Unknown"`: something might."""

@final
class Reports:
    """The reports of a batch, each made when it is looked at."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Report: ...
    def __iter__(self) -> Iterator[Report]: ...
    def failed(self) -> list[Report]:
        """Those of requests that have ended other than completed."""

@final
class Blocks:
    """Where the blocks of one end of a `PagedRequest` lie: those of some pages, or of rows at equal distances."""

    def __new__(
        cls,
        segment: Segment,
        pages: Buffer | SupportsArray | SupportsDLPack | None = None,
        *,
        stride: int,
        rows: int | None = None,
        base: int = 0,
    ) -> Self:
        """`pages`: the numbers of the pages in their order, a block table: an array of whole numbers of 4 or 8 bytes, read now. Or
        `rows`: so many rows, from 0 on.
        `stride`: bytes from the beginning of a page or row to that of the next. `base`: the first byte of page or row 0.
        """
    def __len__(self) -> int: ...

@final
class PagedRequest:
    """One read or write of many blocks of equal length: the n-th block of one end goes to the n-th of the other."""

    def __new__(cls, op: _Op, local: Blocks, remote: Blocks, length: int) -> Self:
        """`length`: bytes of each block."""

@final
class Prepared:
    """A transfer that is ready to be posted. Posts may overlap, and nothing keeps their order."""

    def post(
        self,
        *,
        priority: _Priority = "normal",
        deadline: float | None = None,
        notify: bytes | None = None,
        arrival: int | None = None,
        visible: bool = False,
        room: float | None = None,
    ) -> Batch:
        """Submits it as a batch; see `Engine.write`."""
    def __len__(self) -> int: ...

@final
class Notification:
    """What a peer's program told this one."""

    @property
    def sender(self) -> str:
        """What the sender's engine calls itself: its own word, not proof of who it is."""
    @property
    def incarnation(self) -> int:
        """Drawn at random when the sender's engine started: tells engines of one name apart."""
    @property
    def data(self) -> bytes:
        """What it said."""

@final
class Notifications:
    """Notifications, in the order in which they came; for `for` and `async for`. Both end with the engine."""

    def get(self, timeout: float | None = None) -> Notification:
        """Takes one; waits for it. Raises `TimedOut`, or `Closed` when none will come."""
    def poll(self) -> Notification | None:
        """Takes one if there is one. Raises `Closed` when none will come."""
    def fileno(self) -> int:
        """A descriptor that is readable exactly while one waits. Only to be looked at."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Notification: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Notification: ...

@final
class Delivery:
    """What becomes of a notification."""

    @property
    def status(self) -> DeliveryStatus:
        """How it stands."""
    def wait(self, timeout: float | None = None) -> DeliveryStatus:
        """Waits until it is not `PENDING` any more. Raises `TimedOut`."""

@final
class PeerEvent:
    """Something has happened to a peer whose segments the engine has opened."""

    @property
    def what(self) -> Literal["lost", "back", "changed", "missed"]:
        """`"lost"`: it is lost, and its segments with it. `"back"`: it was lost, and the same process is there again. `"changed"`:
        another process is there in its place. `"missed"`: events were dropped here, because those before had not been taken. A peer
        that is only silent is not lost."""
    @property
    def name(self) -> str:
        """What the peer calls itself: its own word, not proof of who it is. Empty if events were missed."""
    @property
    def address(self) -> str:
        """`"HOST:PORT"` where it was first reached. Empty if events were missed."""
    @property
    def incarnation(self) -> int:
        """Tells processes at one address apart."""
    @property
    def missed(self) -> int:
        """How many events were dropped here."""

@final
class PeerEvents:
    """What happens to peers, in the order in which it happened; for `for` and `async for`. Both end with the engine."""

    def get(self, timeout: float | None = None) -> PeerEvent:
        """Takes one; waits for it. Raises `TimedOut`, or `Closed` when none will come."""
    def poll(self) -> PeerEvent | None:
        """Takes one if there is one. Raises `Closed` when none will come."""
    def fileno(self) -> int:
        """A descriptor that is readable exactly while one waits. Only to be looked at."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> PeerEvent: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> PeerEvent: ...

@final
class ArrivalWatch:
    """A descriptor that is readable once so many batches have arrived with a tag, or none will come any more."""

    def __new__(cls, engine: Engine, tag: int, count: int) -> Self: ...
    def fileno(self) -> int:
        """Only to be looked at."""

@final
class CompletionQueue:
    """Ended batches, with a descriptor that is readable exactly while there are some."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int:
        """Only to be looked at."""
    def add(self, batch: Batch, tag: int) -> None:
        """From when the batch ends on, its tag is in here."""
    def take(self) -> list[int]:
        """Takes all that are in here."""

@final
class Regions:
    """Which segments the addresses of one process are."""

    def __new__(cls) -> Self: ...
    def add(self, address: int, bytes: int, segment: Segment) -> None:
        """From `address` on, so many bytes are those of a segment."""
    def remove(self, address: int, segment: Segment) -> bool:
        """Takes a range away: whether it was there."""
    def missing(self, addresses: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Which of these ranges no segment holds, by their places in the lists."""
    def __len__(self) -> int: ...

def submit_at(
    engine: Engine,
    op: _Op,
    here: Regions,
    there: Regions,
    buffers: Sequence[int],
    addresses: Sequence[int],
    lengths: Sequence[int],
    *,
    deadline: float | None = None,
    notify: bytes | None = None,
    room: float | None = None,
) -> Batch | None:
    """Starts to move bytes between addresses. `None`: there are none to move.

    `LookupError`: no segment holds a range; which side's, "here" or "there", and its place in the lists are its arguments.
    """

def close_all() -> None:
    """Ends all engines: what the package does when the interpreter ends."""

def log_to_queue(level: int) -> None:
    """Hands lines of this level, as `logging` numbers it, and above to the queue."""

def next_record() -> tuple[int, str, str] | None:
    """Waits for a line: its level, who says it, and what. `None`: none will come any more."""

def end_log() -> None:
    """No lines will come any more."""

def forget_log() -> None:
    """What a forked child begins with."""

def run_program(arguments: list[str], program: list[str]) -> int:
    """Runs the program `polyrail` with these arguments, and gives its exit code. `program` starts it once more."""
