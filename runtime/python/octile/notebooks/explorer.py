"""Controls that a person moves in a notebook, and the picture that follows them."""

from __future__ import annotations

from collections.abc import Mapping


class Explorer:
    """Controls, and a picture of the numbers that follow from their values.

    A notebook shows it as its cell's value. ``set`` moves controls as a person does, ``values`` says where they stand,
    and ``result`` has the numbers. A class that derives from it has ``controls``, ``compute`` and ``page``.
    """

    def __init__(self, **values: object) -> None:
        self._widgets = self.controls()
        self._display = None
        self._waits = True
        self.set(**values)
        for widget in self._widgets.values():
            widget.observe(self._refresh, "value")

    def controls(self) -> Mapping[str, object]:
        """Returns the widgets of ipywidgets, by the names of values."""
        raise NotImplementedError

    def compute(self, **values: object) -> object:
        """Returns the numbers of these values."""
        raise NotImplementedError

    def page(self, result: object) -> str:
        """Returns the picture as HTML."""
        raise NotImplementedError

    @property
    def values(self) -> dict[str, object]:
        return {name: widget.value for name, widget in self._widgets.items()}

    def set(self, **values: object) -> Explorer:
        """Moves controls to values. Raises TypeError for a name that no control has, and what the control raises for a
        value that it does not take."""
        unknown = sorted(values.keys() - self._widgets.keys())
        if unknown:
            names = ", ".join(map(repr, self._widgets))
            raise TypeError(f"octile: {type(self).__name__} has no control {unknown[0]!r}; allowed are {names}")
        self._waits = True
        try:
            for name, value in values.items():
                self._widgets[name].value = value
        finally:
            self._waits = False
        self._refresh()
        return self

    def _refresh(self, _change: object = None) -> None:
        if self._waits:
            return
        self.result = self.compute(**self.values)
        if self._display is not None:
            self._display.update(self._picture())

    def _picture(self):
        from IPython.display import HTML

        return HTML(self.page(self.result))

    def _ipython_display_(self) -> None:
        from IPython.display import display
        from ipywidgets import HBox, Layout

        display(HBox(list(self._widgets.values()), layout=Layout(flex_flow="row wrap", grid_gap="0 2em")))
        # An output of its own, so that a notebook that is saved or converted has the picture too.
        self._display = display(self._picture(), display_id=True)


def choice(label: str, options, value, slider: bool = False):
    """Returns a control with these options: a slider, or a list to choose from."""
    import ipywidgets

    kind = ipywidgets.SelectionSlider if slider else ipywidgets.Dropdown
    return kind(options=options, value=value, description=label, style={"description_width": "initial"})


def number(label: str, value: float):
    """Returns a field for a number."""
    import ipywidgets

    style = {"description_width": "initial"}
    return ipywidgets.BoundedFloatText(value=value, min=-1e30, max=1e30, description=label, style=style)


def power_slider(label: str, low: float, high: float, value: float, base: float = 10, step: float = 0.25):
    """Returns a slider over powers of a base from base**low to base**high."""
    import ipywidgets

    return ipywidgets.FloatLogSlider(
        value=value,
        base=base,
        min=low,
        max=high,
        step=step,
        description=label,
        readout_format=".3g",
        style={"description_width": "initial"},
        layout={"width": "26em"},
    )
