from durations import parse


def test_seconds():
    assert parse("45s") == 45


def test_several_units():
    assert parse("1h30m") == 5400
