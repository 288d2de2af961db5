"""Segments and their table: no slot is given out twice, and records make the table again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.block_image import ImageLayout
from cache_tiers.disk.records import Created, Dropped, Record, Retired, Stored, decode, encode
from cache_tiers.disk.segment import Segment
from cache_tiers.disk.segment_table import Place, SegmentTable
from cache_tiers.keys import BlockKey

LAYOUT = ImageLayout(b"f" * 16, 1, 4096, 16)
OTHER = ImageLayout(b"g" * 16, 2, 8192, 16)
KEYS = [BlockKey(bytes([n]) * 16) for n in range(12)]
IMAGE_BYTES = LAYOUT.image_bytes


def make_table(max_images: int = 32, log: list[Record] | None = None) -> SegmentTable:
    return SegmentTable(
        max_images * IMAGE_BYTES, 8 * IMAGE_BYTES, (log if log is not None else []).append
    )


def add_segment(table: SegmentTable, layout: ImageLayout = LAYOUT) -> None:
    segment = table.next_segment(layout)
    assert segment is not None
    table.create(segment)


def test_neighbouring_slots_are_taken_together() -> None:
    segment = Segment(0, LAYOUT, 10)
    assert segment.take(10) == list(range(10))
    for slot in (1, 3, 4, 5, 7, 8):
        segment.release(slot)

    assert segment.take(2) == [7, 8]
    assert segment.take(4) == [3, 4, 5, 1]
    assert segment.take(1) == []


def test_a_slot_that_is_read_is_free_only_after_the_reading() -> None:
    segment = Segment(0, LAYOUT, 1)
    segment.take(1)
    segment.fill(0, KEYS[0], 16)
    segment.begin_read(0)
    segment.begin_read(0)
    segment.release(0)

    segment.end_read(0)
    assert segment.take(1) == []
    assert not segment.is_empty
    segment.end_read(0)
    assert segment.take(1) == [0]


def test_a_condemned_slot_is_not_used_again_even_if_it_was_read() -> None:
    segment = Segment(0, LAYOUT, 1)
    segment.take(1)
    segment.fill(0, KEYS[0], 16)
    segment.begin_read(0)
    segment.release(0)
    segment.condemn(0)
    segment.end_read(0)

    assert segment.take(1) == []
    segment.check_integrity()


def test_segments_take_no_more_room_than_there_is() -> None:
    table = make_table(max_images=20)
    for num_slots in (8, 8, 4):
        segment = table.next_segment(LAYOUT)
        assert segment is not None
        assert segment.num_slots == num_slots
        table.create(segment)

    assert table.next_segment(LAYOUT) is None
    assert table.free_images(LAYOUT, can_grow=True) == 20


def test_an_empty_segment_is_spare_for_another_layout_only() -> None:
    table = make_table(max_images=8)
    add_segment(table)

    assert table.spare(LAYOUT) == []
    (spare,) = table.spare(OTHER)
    assert table.next_segment(OTHER) is None
    assert table.free_images(OTHER, can_grow=True) == 8 * IMAGE_BYTES // OTHER.image_bytes
    table.retire(spare)
    assert table.next_segment(OTHER) is not None


def test_a_segment_being_written_is_not_spare() -> None:
    table = make_table()
    add_segment(table)
    (place,) = table.take(LAYOUT, 1)

    assert table.spare(OTHER) == []
    place.segment.release(place.slot)
    assert len(table.spare(OTHER)) == 1


def test_an_image_written_into_a_segment_that_went_is_not_held() -> None:
    table = make_table()
    add_segment(table)
    (place,) = table.take(LAYOUT, 1)
    table.retire(place.segment)

    assert not table.fill(place, KEYS[0], 16)
    assert table.locate(LAYOUT, KEYS[0]) is None


def test_equal_keys_of_two_layouts_are_two_images() -> None:
    table = make_table(max_images=64)
    places = []
    for layout in (LAYOUT, OTHER):
        add_segment(table, layout)
        (place,) = table.take(layout, 1)
        table.fill(place, KEYS[0], 16)
        places.append(place)

    assert [table.locate(layout, KEYS[0]) for layout in (LAYOUT, OTHER)] == places


def test_records_about_what_is_unknown_are_left_out() -> None:
    table = make_table()
    table.apply(Stored(7, 0, KEYS[0], 16))
    table.apply(Dropped(7, 0))
    table.apply(Retired(7))
    table.apply(Created(7, 0, LAYOUT))
    table.apply(Created(1, 2, LAYOUT))
    table.apply(Stored(1, 2, KEYS[0], 16))

    assert table.num_images == 0
    table.check_integrity()


def test_the_later_record_of_a_key_or_slot_holds() -> None:
    table = make_table()
    table.apply(Created(1, 3, LAYOUT))
    table.apply(Stored(1, 0, KEYS[0], 16))
    table.apply(Stored(1, 0, KEYS[1], 16))
    table.apply(Stored(1, 1, KEYS[1], 7))

    assert [tuple(held) for held in table.held()] == [(LAYOUT, KEYS[1], 7)]
    assert len(table.take(LAYOUT, 3)) == 2
    table.check_integrity()


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "store", "store", "store", "drop", "condemn", "retire"]),
        st.integers(0, len(KEYS) - 1),
    ),
    max_size=60,
)


def do(table: SegmentTable, step: Step) -> None:
    action, number = step
    layout, key = (LAYOUT, OTHER)[number % 2], KEYS[number]
    place = table.locate(layout, key)
    match action:
        case "grow":
            segment = table.next_segment(layout)
            if segment is not None:
                table.create(segment)
        case "store" if place is None:
            for taken in table.take(layout, 1):
                table.fill(taken, key, number + 1)
        case "drop" if place is not None:
            table.drop(place)
        case "condemn" if place is not None:
            table.condemn(place)
        case "retire" if table.segments:
            table.retire(table.segments[number % len(table.segments)])


def state(table: SegmentTable) -> tuple[object, ...]:
    bad = {
        (each.number, slot)
        for each in table.segments
        for slot in range(each.num_slots)
        if each.is_bad(slot)
    }
    places = {
        (held, place.segment.number, place.slot)
        for held in table.held()
        for place in [table.locate(held.layout, held.key)]
        if isinstance(place, Place)
    }
    return places, bad, table.used_bytes


@given(STEPS, st.data())
@settings(max_examples=50, deadline=None)
def test_replayed_records_give_the_same_table(steps: list[Step], data: st.DataObject) -> None:
    """Also with a snapshot taken at any moment, behind which records from before it come again."""
    log: list[Record] = []
    table = make_table(log=log)
    begun = data.draw(st.integers(0, len(steps)))
    taken = data.draw(st.integers(begun, len(steps)))
    since, snapshot = 0, list(table.records())
    for number, step in enumerate(steps):
        if number == begun:
            since = len(log)
        do(table, step)
        table.check_integrity()
        if number < taken:
            snapshot = list(table.records())

    content = b"".join(map(encode, log))
    for records in ([*decode(content)], [*snapshot, *log[since:]]):
        again = make_table()
        for record in records:
            assert record is not None
            again.apply(record)
        again.check_integrity()
        assert state(again) == state(table)
