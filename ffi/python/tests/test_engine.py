"""How an engine is made, and what it says of itself."""

import json

import pytest

import polyrail


def test_a_configuration_comes_from_a_file_a_dictionary_and_keywords(tmp_path, monkeypatch):
    keys = {"name": "told", "spray": {"priority_promotion_ms": 5}}
    path = tmp_path / "polyrail.json"
    path.write_text(json.dumps(keys))
    for config in (keys, path, str(path)):
        with polyrail.Engine(config) as engine:
            assert engine.name == "told" and engine.listening is None
        with polyrail.Engine(config=config, name="by-keyword", listen=None) as engine:
            assert engine.name == "by-keyword"
    monkeypatch.setenv("POLYRAIL_NAME", "from-outside")
    assert polyrail.Engine(keys).name == "from-outside"
    assert polyrail.Engine(keys, name="by-keyword").name == "by-keyword"
    monkeypatch.setenv("POLYRAIL_HEALTH__PEER_SILENCE_MS", "-1")
    with pytest.raises(polyrail.Invalid, match="POLYRAIL_HEALTH__PEER_SILENCE_MS"):
        polyrail.Engine()


@pytest.mark.parametrize(
    ("arguments", "keys", "error", "words"),
    [
        ((), {"polcy": "spray"}, polyrail.Invalid, "the nearest known one is policy"),
        (({"policy": 5},), {}, polyrail.Invalid, "config"),
        (("/none.json",), {}, polyrail.Invalid, "/none.json"),
        ((5,), {}, TypeError, "a dictionary or the path of a file in JSON expected"),
        (({"name": {1, 2}},), {}, TypeError, "not JSON serializable"),
        ((), {"listen": "0.0.0.0:0"}, polyrail.Invalid, "beyond loopback"),
        ((), {"listen": "192.0.2.1:0", "insecure": True}, polyrail.Unavailable, "cannot listen on 192.0.2.1:0"),
    ],
)
def test_a_bad_configuration_is_refused_in_words(arguments, keys, error, words):
    with pytest.raises(error) as refused:
        polyrail.Engine(*arguments, **keys)
    assert words in str(refused.value)


def test_everything_says_what_it_is():
    with polyrail.Engine(name="e", listen="127.0.0.1:0") as engine:
        assert repr(engine) == f'<polyrail.Engine "e" listening on {engine.listening}>'
        memory = engine.allocate(4096, "mem")
        assert repr(memory) == '<polyrail.Memory "mem" of 4096 bytes>'
        assert isinstance(memory, polyrail.Segment)
    assert repr(engine) == f'<polyrail.Engine "e" listening on {engine.listening}, closed>'
    assert repr(polyrail.Engine(name="f")) == '<polyrail.Engine "f">'


def test_errors_are_what_they_are_called():
    by_base = {
        ValueError: ["Invalid"],
        OSError: ["Unavailable", "Unreachable", "TimedOut"],
        polyrail.Error: [
            "Failed", "PeerLost", "Indeterminate", "DeadlineExceeded", "Cancelled", "Full", "Closed", "InUse", "Forked", "TimedOut",
            "Invalid", "Unreachable", "Unavailable",
        ],
    }  # fmt: skip
    for base, names in by_base.items():
        for name in names:
            error = getattr(polyrail, name)("words")
            assert isinstance(error, base) and str(error) == "words" and error.batch is error.report is None
    assert isinstance(polyrail.Unreachable(), ConnectionError) and isinstance(polyrail.TimedOut(), TimeoutError)


def test_every_public_name_is_documented():
    for name in polyrail.__all__:
        value = getattr(polyrail, name)
        if not isinstance(value, (str, int)):
            assert value.__doc__, name
