// Sorts and filters the tables, and gives their rows to the charts.
(function () {
  "use strict";
  const $ = (id) => document.getElementById(id);

  function valueOf(cell) {
    const data = cell.querySelector("data");
    if (data) return Number(data.value);
    const text = cell.textContent.trim();
    if (text === "") return null;
    return cell.classList.contains("n") && !isNaN(text) ? Number(text) : text;
  }

  // The rows of a table as objects, by the keys of its headings.
  function read(table) {
    if (!table) return [];
    const keys = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.key);
    return [...table.tBodies[0].rows].map((row) =>
      Object.fromEntries(keys.map((key, i) => [key, valueOf(row.cells[i])])));
  }

  function compare(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", {numeric: true});
  }

  function sortBy(table, heading) {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    const column = heading.cellIndex, body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
    keyed.sort(([a], [b]) =>
      descending && a !== null && b !== null ? compare(b, a) : compare(a, b));
    for (const other of heading.parentNode.cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    body.append(...keyed.map(([, row]) => row));
  }

  function makeSortable(table) {
    table.tHead.addEventListener("click", (event) => {
      const heading = event.target.closest("th");
      if (heading) sortBy(table, heading);
    });
  }

  // Every word has to be in a row.
  function makeFilter(table) {
    const rows = [...table.tBodies[0].rows];
    const texts = rows.map((row) =>
      [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
    const apply = () => {
      const words = $("words").value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      rows.forEach((row, i) => {
        const hidden = !words.every((word) => texts[i].includes(word));
        if (row.hidden !== hidden) row.hidden = hidden;
        if (!hidden) count += 1;
      });
      $("count").textContent = `${count} of ${rows.length} rows`;
    };
    $("filter").hidden = false;
    $("filter").addEventListener("submit", (event) => event.preventDefault());
    $("words").addEventListener("input", apply);
    apply();
  }

  async function draw() {
    const {config, charts} = JSON.parse($("specifications").textContent);
    const datasets = {rows: read($("rows")), layers: read($("layers"))};
    for (const [id, chart] of Object.entries(charts)) {
      // Labels of the vertical axis leave two thirds of a phone to the marks.
      const width = $("chart-" + id).clientWidth;
      config.axisY = {labelLimit: Math.min(210, Math.round(width / 3))};
      const specification = {width: "container", autosize: {type: "fit-x", contains: "padding"}, datasets, ...chart};
      await window.vegaEmbed($("chart-" + id), specification, {
        mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, config,
        tooltip: {disableDefaultStyle: true},
      });
    }
  }

  document.querySelectorAll("table").forEach(makeSortable);
  if ($("rows")) makeFilter($("rows"));
  const ready = () => { document.documentElement.dataset.ready = "yes"; };
  if ($("specifications") && window.vegaEmbed) draw().then(ready);
  else ready();
})();
