from roman import from_roman, to_roman


def test_writes_subtractive_numerals():
    assert to_roman(1994) == "MCMXCIV"


def test_reads_additive_numerals():
    assert from_roman("MDCLXVI") == 1666


def test_reads_subtractive_numerals():
    assert from_roman("XIV") == 14
    assert from_roman("MCMXCIV") == 1994


def test_round_trip():
    assert all(from_roman(to_roman(number)) == number for number in range(1, 4000))


def test_refuses_zero():
    try:
        to_roman(0)
    except ValueError:
        return
    raise AssertionError("0 was accepted")
