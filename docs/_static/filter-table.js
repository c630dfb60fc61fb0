// A filter above each table inside of an element of the class "filterable": one list for each column
// and a field for words. All of them are ordinary form controls, so the keyboard works as anywhere.
// Without scripts the table is simply whole.
(() => {
  "use strict";

  // What differs in numbers only, such as "rule 5" and "rule 7", is one choice.
  const kindOf = (text) => text.trim().replace(/\s*\d+/g, "");

  const choicesOf = (rows, column) => [...new Set(rows.map((row) => kindOf(row[column])))].sort();

  const isShown = (row, chosen, words) =>
    chosen.every((kind, column) => kind === "" || kindOf(row[column]) === kind) &&
    words
      .toLowerCase()
      .split(/\s+/)
      .every((word) => row.join(" ").toLowerCase().includes(word));

  const labelled = (name, control) => {
    const label = document.createElement("label");
    label.append(`${name} `, control);
    return label;
  };

  const listOf = (kinds) => {
    const list = document.createElement("select");
    for (const kind of ["", ...kinds]) {
      const option = document.createElement("option");
      option.value = kind;
      option.textContent = kind === "" ? "any" : kind;
      list.append(option);
    }
    return list;
  };

  const addFilter = (table) => {
    const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    const lines = [...table.querySelectorAll("tbody tr")];
    const rows = lines.map((line) => [...line.children].map((cell) => cell.textContent.trim()));
    const lists = heads.map((_, column) => listOf(choicesOf(rows, column)));
    const words = document.createElement("input");
    words.type = "search";
    const count = document.createElement("output"); // its changes are read aloud
    const form = document.createElement("form");
    form.className = "table-filter";
    const all = document.createElement("button");
    all.type = "reset";
    all.textContent = "show all";
    form.append(
      ...heads.map((head, column) => labelled(head, lists[column])),
      labelled("words", words),
      all,
      count,
    );
    const apply = () => {
      const chosen = lists.map((list) => list.value);
      let left = 0;
      lines.forEach((line, place) => {
        line.hidden = !isShown(rows[place], chosen, words.value);
        left += line.hidden ? 0 : 1;
      });
      count.textContent = `${left} of ${lines.length} rows`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("reset", () => setTimeout(apply)); // after the controls were emptied
    form.addEventListener("submit", (event) => event.preventDefault()); // Enter keeps the page
    table.before(form);
    apply();
  };

  if (typeof module !== "undefined") {
    module.exports = { addFilter, choicesOf, isShown, kindOf };
  } else {
    document.addEventListener("DOMContentLoaded", () => {
      document.querySelectorAll(".filterable table").forEach(addFilter);
    });
  }
})();
