"""Blocks by tables and in rows."""

import array

import numpy
import pytest
from conftest import LONG, Tensor, crc, pattern

import polyrail
from polyrail import Blocks, PagedRequest

PAGE = 4096
PAGES = 256


@pytest.fixture
def ends(engine, target):
    """Bytes, the segment that they are, and the target's."""
    source = pattern(PAGES * PAGE)
    return source, engine.register(source, name="here"), engine.open(f"{target.address}/mem")


TABLES = [
    *(lambda pages, kind=kind: pages.astype(kind) for kind in ["uint32", "int32", "int64", "uint64"]),
    lambda pages: array.array("I", pages),
    lambda pages: memoryview(array.array("q", pages)),
    Tensor,
    lambda pages: Tensor(pages.astype("int32"), versioned=False),
]


@pytest.mark.parametrize("table", TABLES)
def test_pages_go_where_tables_say(engine, target, ends, table):
    source, local, remote = ends
    here = numpy.random.default_rng(2).permutation(PAGES)
    there = numpy.random.default_rng(3).permutation(PAGES)
    tables = table(here), table(there)
    request = PagedRequest("write", Blocks(local, tables[0], stride=PAGE), Blocks(remote, pages=tables[1], stride=PAGE), PAGE)
    summary = engine.submit_paged([request]).wait(LONG)
    assert (summary.requests, summary.delivered_bytes) == (1, PAGES * PAGE)
    expected = numpy.empty((PAGES, PAGE), numpy.uint8)
    expected[there] = source.reshape(PAGES, PAGE)[here]
    assert target.crc(0, PAGES * PAGE) == crc(expected)


def test_pages_go_to_rows_and_around_them_nothing_changes(engine, target, ends):
    source, local, remote = ends
    blocks = Blocks(local, numpy.array([7, 3, 4]), stride=PAGE, base=100)
    rows = Blocks(remote, rows=3, stride=3000, base=50)
    assert (len(blocks), len(rows)) == (3, 3) and repr(blocks) == '<polyrail.Blocks: 3 pages of "here">' and "3 rows" in repr(rows)
    request = PagedRequest("write", blocks, rows, 1000)
    assert "Write of 3 blocks of 1000 bytes" in repr(request)
    engine.submit_paged([request]).wait(LONG)
    expected = numpy.zeros(PAGES * PAGE, numpy.uint8)
    for row, page in enumerate([7, 3, 4]):
        expected[50 + row * 3000 :][:1000] = source[100 + page * PAGE :][:1000]
    assert target.crc(0, PAGES * PAGE) == crc(expected)
    copy = numpy.zeros(3000, numpy.uint8)
    back = PagedRequest("read", Blocks(engine.register(copy), rows=3, stride=1000), rows, 1000)
    engine.submit_paged((back,)).wait(LONG)
    assert (copy.reshape(3, 1000) == [expected[50 + row * 3000 :][:1000] for row in range(3)]).all()


def test_each_request_has_its_report_and_layers_may_have_their_own_memory(engine, target, ends):
    source, _, remote = ends
    layers, pages = source.reshape(4, -1), numpy.arange(0, 64, 2)
    requests = [
        PagedRequest(
            "write",
            Blocks(engine.register(layer, name=f"layer {index}"), pages, stride=PAGE),
            Blocks(remote, pages, stride=PAGE, base=index * 64 * PAGE),
            PAGE,
        )
        for index, layer in enumerate(layers)
    ]
    batch = engine.submit_paged(requests, priority="high", deadline=LONG, notify=b"layers", room=1)
    assert batch.wait(LONG).requests == len(batch) == len(batch.reports) == 4
    assert [report.delivered_bytes for report in batch.reports] == [32 * PAGE] * 4
    assert 'write of "layer 0" to' in repr(batch) and " and others: Completed" in repr(batch)
    assert target.ask("notification") == "initiator layers"
    expected = numpy.zeros((256, PAGE), numpy.uint8)
    expected[::2] = source.reshape(256, PAGE)[::2]
    assert target.crc(0, PAGES * PAGE) == crc(expected)


def test_tables_are_read_at_once(engine, target, ends):
    source, local, remote = ends
    pages = numpy.arange(PAGES)[::-1].copy()
    request = PagedRequest("write", Blocks(local, pages, stride=PAGE), Blocks(remote, rows=PAGES, stride=PAGE), PAGE)
    prepared = engine.prepare_paged([request])
    pages[:] = -1
    assert len(prepared) == 1 and 'write of "here" to' in repr(prepared)
    for round in range(3):
        source[:] = pattern(PAGES * PAGE, round)
        assert prepared.post(arrival=round).wait(LONG).delivered_bytes == PAGES * PAGE
        assert target.crc(0, PAGES * PAGE) == crc(source.reshape(PAGES, PAGE)[::-1].copy())
    assert target.ask("arrivals", 2, 1) == "1"


def test_a_table_of_a_hundred_thousand_pages(engine, targets):
    blocks, block = 100_000, 64
    target = targets(size=blocks * block, memory="allocated")
    source = pattern(blocks * block)
    local, remote = engine.register(source), engine.open(f"{target.address}/mem")
    pages = numpy.random.default_rng(3).permutation(blocks)
    request = PagedRequest("write", Blocks(local, pages, stride=block), Blocks(remote, rows=blocks, stride=block), block)
    assert engine.submit_paged([request]).wait(LONG).delivered_bytes == blocks * block
    assert target.crc(0, blocks * block) == crc(source.reshape(blocks, block)[pages].copy())


def test_nonsense_is_refused_in_words(engine, target, ends):
    _, local, remote = ends
    other = polyrail.Engine(name="other")
    constant = engine.register(b"constant", name="constant")

    def pages(*numbers, segment=local, kind="int64"):
        return Blocks(segment, numpy.array(numbers, kind), stride=PAGE)

    def write(here, there, length=PAGE, engine=engine):
        return engine.submit_paged([PagedRequest("write", here, there, length)])

    there = Blocks(remote, rows=2, stride=PAGE)
    # (what is asked, the error, words of it)
    cases = [
        (lambda: pages(0, 1, -1), ValueError, "pages[2] is -1: the number of a page, from 0 to 4294967295, expected"),
        (lambda: pages(0, -7, kind="int32"), ValueError, "pages[1] is -7"),
        (lambda: pages(1 << 32, 0), ValueError, "pages[0] is 4294967296"),
        (lambda: pages((1 << 64) - 1, kind="uint64"), ValueError, "pages[0] is 18446744073709551615"),
        (lambda: pages(), ValueError, "no pages or rows"),
        (lambda: pages(1.0, kind="float64"), TypeError, 'pages is an array of format "d"'),
        (lambda: Blocks(local, numpy.zeros((2, 2), int), stride=1), ValueError, "pages is an array of shape [2, 2]"),
        (lambda: Blocks(local, Tensor(numpy.zeros((2, 2), int)), stride=1), TypeError, "pages is a tensor of 2 dimensions"),
        (lambda: Blocks(local, Tensor(numpy.zeros(2)), stride=1), TypeError, "pages is a tensor of other items"),
        (lambda: Blocks(local, [1, 2], stride=1), TypeError, "pages is a <class 'list'>"),
        (lambda: Blocks(local, stride=1), ValueError, "by pages, or by rows"),
        (lambda: Blocks(local, numpy.zeros(2, int), rows=2, stride=1), ValueError, "by pages, or by rows"),
        (lambda: Blocks(local, rows=-1, stride=1), ValueError, "rows is -1"),
        (lambda: Blocks(local, rows=1, stride=-1), ValueError, "stride is -1"),
        (lambda: Blocks(local, rows=1, stride=1, base=-1), ValueError, "base is -1"),
        (lambda: Blocks(local, rows=1, stride=1.5), TypeError, "stride"),
        (lambda: PagedRequest("copy", there, there, 1), ValueError, '"write", "read" expected'),
        (lambda: PagedRequest("read", Blocks(constant, rows=1, stride=1), there, 1), BufferError, "nothing can be read into it"),
        (lambda: PagedRequest("write", there, there, -1), ValueError, "length is -1"),
        (lambda: engine.submit_paged([]), ValueError, "there are no requests"),
        (lambda: write(pages(0, 1, 2), there), polyrail.Invalid, "request 0: 3 blocks here and 2 there"),
        (lambda: write(pages(0, 1), there, 0), polyrail.Invalid, "a length of 0"),
        (lambda: write(pages(0, PAGES), there), polyrail.Invalid, 'block 1, page or row 256, of 4096 bytes from offset 1048576 ends past "here"'),
        (lambda: write(pages(0, 1), pages(3, 300, segment=remote)), polyrail.Invalid, f'page or row 300, of 4096 bytes from offset 1228800 ends past "{remote.name}"'),
        (lambda: write(pages(0, 1), there, engine=other), ValueError, "belongs to another engine"),
        (lambda: engine.prepare_paged([5]), TypeError, "requests"),
        (lambda: engine.prepare_paged([PagedRequest("write", pages(0, PAGES), there, PAGE)]), polyrail.Invalid, 'ends past "here"'),
    ]  # fmt: skip
    for ask, error, words in cases:
        with pytest.raises(error) as refused:
            ask()
        # Python's own text about a type has the argument's name in a note.
        assert words in "\n".join([str(refused.value), *getattr(refused.value, "__notes__", [])])
    other.close()


def test_offsets_may_be_tensors(engine, target, ends):
    source, local, remote = ends
    places = numpy.random.default_rng(2).permutation(PAGES) * PAGE
    engine.write(local, remote, PAGE, local_offset=Tensor(places), remote_offset=Tensor(numpy.arange(PAGES) * PAGE)).wait(LONG)
    assert target.crc(0, PAGES * PAGE) == crc(source.reshape(PAGES, PAGE)[places // PAGE].copy())
