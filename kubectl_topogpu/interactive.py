"""`top -i`: the tables of `views` on a terminal (edge). Only this module imports textual, which is optional."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from kubectl_topogpu.kubectl import ObjectsUnreadable
from kubectl_topogpu.views import Narrowing, Observed, View, ViewChoice, ViewTable, age, summary, table
from program.words import counted, printable

EVERY_SECONDS = 5.0
"""Time from the beginning of a reading to that of the next one, or longer where a reading takes longer."""
_TICK_SECONDS = 0.5


class TopApp(App[None]):
    """The terminal. `read` blocks, and raises ObjectsUnreadable or LookupError."""

    TITLE = "kubectl topogpu top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary, #age { height: 1; padding: 0 1; }
    #summary { text-style: bold; }
    #age { color: $text-muted; }
    #age.old { color: $text-error; text-style: bold; }
    #search { display: none; height: 3; }
    #search.open { display: block; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "view('nodes')", "nodes"),
        Binding("2", "view('gpus')", "GPUs"),
        Binding("3", "view('pods')", "pods"),
        Binding("4", "view('waiting')", "waiting"),
        Binding("slash", "search", "search"),
        Binding("f", "narrow", "filter"),
        Binding("s", "sort", "sort by next"),
        Binding("S", "reverse", "reverse"),
        Binding("escape", "take_back", "back"),
        Binding("r", "refresh", "read now"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(
        self,
        read: Callable[[], Observed],
        choice: ViewChoice,
        *,
        now: Callable[[], float] = time.monotonic,
        every: float = EVERY_SECONDS,
    ) -> None:
        """`every` is 0 for what does not change."""
        super().__init__()
        self.choice = choice
        self._read = read
        self._now = now
        self._every = every
        self._seen: Observed | None = None
        self._failure = ""
        self._reading = False
        self._began = 0.0
        self._drawn: ViewTable | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="summary", markup=False)
        yield Static(id="age", markup=False)
        yield Input(id="search", placeholder="words that a row has to contain; Enter keeps them, Esc clears them")
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self.set_interval(_TICK_SECONDS, self._tick)
        self.action_refresh()

    def _tick(self) -> None:
        if self._every and not self._reading and self._now() - self._began >= self._every:
            self.action_refresh()
        self._draw_age()

    def action_refresh(self) -> None:
        if not self._reading:
            self._reading, self._began = True, self._now()
            self.run_worker(self._look, thread=True, exit_on_error=False)

    def _look(self) -> None:
        """Runs in a thread of its own: a cluster that does not answer stops no key."""
        try:
            seen = replace(self._read(), began=self._began)
        except (ObjectsUnreadable, LookupError) as error:
            self.call_from_thread(self._arrived, None, printable(str(error)))
        else:
            self.call_from_thread(self._arrived, seen, "")

    def _arrived(self, seen: Observed | None, failure: str) -> None:
        self._reading, self._failure = False, failure
        self._seen = seen or self._seen
        self._draw()

    def action_view(self, name: str) -> None:
        self.choice = replace(self.choice, view=View(name), node="", order="", reverse=False)
        self._draw()

    def action_search(self) -> None:
        search = self.query_one(Input)
        search.add_class("open")
        search.focus()

    def action_narrow(self) -> None:
        every = list(Narrowing)
        after = every[(every.index(self.choice.narrowing) + 1) % len(every)]
        self.choice = replace(self.choice, narrowing=after)
        self._draw()

    def action_sort(self) -> None:
        if self._drawn is not None:
            keys = [column.key for column in self._drawn.columns]
            at = keys.index(self.choice.order) + 1 if self.choice.order in keys else 0
            self._sort_by(keys[at % len(keys)])

    def action_reverse(self) -> None:
        self.choice = replace(self.choice, reverse=not self.choice.reverse)
        self._draw()

    def action_take_back(self) -> None:
        """Takes back the last wish: the search, then the filter, then the node."""
        search = self.query_one(Input)
        if search.has_class("open") or self.choice.search:
            search.value = ""
            self.on_input_submitted()
        elif self.choice.narrowing is not Narrowing.ALL:
            self.choice = replace(self.choice, narrowing=Narrowing.ALL)
        elif self.choice.node:
            self.choice = replace(self.choice, node="", view=View.NODES)
        self._draw()

    def on_input_changed(self, changed: Input.Changed) -> None:
        self.choice = replace(self.choice, search=changed.value)
        self._draw()

    def on_input_submitted(self) -> None:
        self.query_one(Input).remove_class("open")
        self.query_one(DataTable).focus()

    def on_data_table_header_selected(self, header: DataTable.HeaderSelected) -> None:
        key = str(header.column_key.value)
        if key == self.choice.order:
            self.action_reverse()
        else:
            self._sort_by(key)

    def on_data_table_row_selected(self, selected: DataTable.RowSelected) -> None:
        """Opens a node, and of it a GPU's pods."""
        name = str(selected.row_key.value)
        if self.choice.view is View.NODES:
            self.choice = replace(self.choice, view=View.GPUS, node=name, order="", reverse=False)
        elif self.choice.view is View.GPUS:
            node = name.rpartition("/")[0]
            self.choice = replace(self.choice, view=View.PODS, node=node, order="", reverse=False)
        self._draw()

    def _sort_by(self, key: str) -> None:
        self.choice = replace(self.choice, order=key, reverse=False)
        self._draw()

    def _draw(self) -> None:
        self._draw_age()
        if self._seen is None:
            return
        self.query_one("#summary", Static).update(summary(self._seen))
        self._drawn = drawn = table(self._seen, self.choice)
        shown: DataTable[object] = self.query_one(DataTable)
        at = shown.coordinate_to_cell_key(shown.cursor_coordinate).row_key.value if shown.row_count else None
        shown.clear(columns=True)
        for column in drawn.columns:
            mark = "" if column.key != self.choice.order else " ▲" if self.choice.reverse else " ▼"
            shown.add_column(f"{column.title}{mark}", key=column.key)
        for name, row in drawn.rows:
            shown.add_row(*(column.cell(row) for column in drawn.columns), key=name)
        names = [name for name, _ in drawn.rows]
        if at in names:
            shown.move_cursor(row=names.index(at))

    def _draw_age(self) -> None:
        text = age(self._seen, self._now(), self._failure, self._every or float("inf"))
        wishes = [*_wishes(self.choice)]
        if self._drawn is not None and self._drawn.left_out:
            wishes.append(f"{counted(self._drawn.left_out, 'more row')} not drawn: search or filter")
        # None is there once the terminal closes.
        for line in self.query("#age").results(Static):
            line.set_class(text.startswith(("OLD", "not read")), "old")
            line.update("; ".join([text, *wishes]))


def _wishes(choice: ViewChoice) -> Sequence[str]:
    """Returns what is shown, in words."""
    found = [str(choice.view)]
    found += [f"of node {choice.node}"] * bool(choice.node)
    found += [f"only {choice.narrowing}"] * (choice.narrowing is not Narrowing.ALL)
    found += [f"with {choice.search!r}"] * bool(choice.search)
    return found
