from protocol.sampling import GrammarSpec
from scheduler.grammar.cache import GrammarCache, cache_key


def test_the_least_recently_used_goes_first() -> None:
    cache: GrammarCache[int] = GrammarCache(10)
    for value in (1, 2, 3):
        cache.put((str(value),), value, 4)
        cache.get(("1",))
    assert [cache.get((str(value),)) for value in (1, 2, 3)] == [1, None, 3]
    assert cache.bytes == 8


def test_an_entry_replaced_counts_once() -> None:
    cache: GrammarCache[int] = GrammarCache(10)
    cache.put(("a",), 1, 4)
    cache.put(("a",), 2, 5)
    assert (cache.get(("a",)), cache.bytes, len(cache)) == (2, 5, 1)


def test_the_newest_stays_even_if_it_is_too_large() -> None:
    cache: GrammarCache[int] = GrammarCache(10)
    cache.put(("a",), 1, 4)
    cache.put(("b",), 2, 50)
    assert (cache.get(("a",)), cache.get(("b",)), cache.bytes) == (None, 2, 50)


def test_the_field_is_no_part_of_the_key() -> None:
    assert cache_key(GrammarSpec("regex", "a", "regex")) == cache_key(GrammarSpec("regex", "a", "guided_regex"))
    assert cache_key(GrammarSpec("regex", "a")) != cache_key(GrammarSpec("ebnf", "a"))
    assert cache_key(GrammarSpec("json_schema", "{}")) != cache_key(GrammarSpec("json_schema", "{}", strict=False))
