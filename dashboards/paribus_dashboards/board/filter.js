// Filters: <form data-filter="ID"> hides tiles in #ID that don't match; the choice is in the page's address.
(() => {
  const offline = Boolean(window.PARIBUS_DATA);
  const query = () => new URLSearchParams(offline ? location.hash.split("?")[1] || "" : location.search);

  const matches = (element, name, wanted) => {
    const has = (element.dataset[name] || "").toLowerCase();
    return name === "arm" ? has.includes(wanted.toLowerCase()) : has === wanted;
  };

  const apply = (form) => {
    const wanted = [...new FormData(form)].filter(([, value]) => value);
    const inside = form.parentElement.querySelector(`#${form.dataset.filter}`);
    let shown = 0;
    for (const group of inside.querySelectorAll("[data-filterable-group]")) {
      let some = false;
      for (const tile of group.querySelectorAll(".tile")) {
        const hit = wanted.every(([name, value]) => matches(name in tile.dataset ? tile : group, name, value));
        tile.style.visibility = hit ? "" : "hidden";
        some ||= hit;
        shown += hit;
      }
      group.hidden = !some && wanted.length > 0;
    }
    form.querySelector("[role=status]").textContent = wanted.length ? `${shown} run${shown === 1 ? "" : "s"}` : "";
  };

  const fromAddress = (form) => {
    const found = form.closest("[hidden]") ? new URLSearchParams() : query();
    for (const field of form.elements) if (field.name) field.value = found.get(field.name) || "";
    apply(form);
  };

  let typing = null; // the field whose letters share one history entry, until it loses the focus or the reader goes back
  const toAddress = (form, field) => {
    const found = query();
    for (const [name, value] of new FormData(form)) value ? found.set(name, value) : found.delete(name);
    const text = found.toString() ? `?${found}` : "";
    const at = (offline ? location.hash.split("?")[0] : location.pathname) + text;
    if (at === (offline ? location.hash : location.pathname + location.search)) return;
    history[typing === field ? "replaceState" : "pushState"](null, "", at);
    typing = field.type === "search" ? field : null;
  };

  const forms = () => document.querySelectorAll("form[data-filter]");
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-filter]");
    if (!form) return;
    toAddress(form, event.target);
    apply(form);
  });
  document.addEventListener("change", () => { typing = null; });
  document.addEventListener("submit", (event) => { if (event.target.closest("form[data-filter]")) event.preventDefault(); });
  document.addEventListener("paribus:swapped", () => forms().forEach(apply));
  for (const change of ["popstate", "hashchange"]) addEventListener(change, () => { typing = null; forms().forEach(fromAddress); });
  forms().forEach(fromAddress);
})();
