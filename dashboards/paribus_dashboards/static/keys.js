// Keyboard shortcuts: j and k move between elements of the class "entry", / goes to the filter, digits to pages, ? to help.
(() => {
  const help = document.querySelector("dialog.help");
  const single = help.querySelector(".single-keys"); // for speech input and slips, they can be switched off
  const STORED = "paribus-single-keys";
  const visible = (e) => e.offsetParent !== null;
  const find = (what) => [...document.querySelectorAll(what)].find(visible);
  const entries = () => [...document.querySelectorAll("main .entry")].filter(visible);

  const move = (by) => {
    const all = entries();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const to = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by));
    all[to].focus();
    all[to].scrollIntoView({ block: "nearest", inline: "nearest" });
  };

  const remembered = () => { try { return localStorage.getItem(STORED) !== "off"; } catch { return true; } };
  const remember = (on) => { try { on ? localStorage.removeItem(STORED) : localStorage.setItem(STORED, "off"); } catch { /* this page only */ } };
  single.checked = remembered();
  single.addEventListener("change", () => remember(single.checked));
  addEventListener("storage", (event) => { if (event.key === STORED) single.checked = remembered(); });

  const actions = {
    j: () => move(1),
    k: () => move(-1),
    "/": () => (find("input[type=search]") || find("form[data-filter] select, form[data-choose] :is(select, input)"))?.focus(),
    "?": () => help.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, [contenteditable]");
    if (typing || !single.checked || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const links = [...document.querySelectorAll("header nav a")].filter(visible);
    const action = actions[event.key] || (/^[1-9]$/.test(event.key) && links[event.key - 1] && (() => links[event.key - 1].click()));
    if (!action) return;
    event.preventDefault();
    action();
  });
  document.addEventListener("click", (event) => { if (event.target.closest(".help-button")) help.showModal(); });

  // in a narrow window the navigation is one row that scrolls: the current page is in view
  for (const link of document.querySelectorAll(".top nav a[aria-current]")) link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - 60;

  // forms that choose submit on any change; empty fields stay out of the address
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-choose]");
    if (!form) return;
    sessionStorage.setItem("chosen", JSON.stringify([location.pathname, event.target.name, event.target.value]));
    form.requestSubmit();
  });
  const [path, name, value] = JSON.parse(sessionStorage.getItem("chosen") || "[]");
  sessionStorage.removeItem("chosen");
  if (path === location.pathname) {
    const fields = [...document.querySelectorAll("form[data-choose] [name]")].filter((f) => f.name === name);
    (fields.find((f) => f.value === value) || fields[0])?.focus({ preventScroll: true }); // the page was loaded again
  }
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-choose]");
    if (form) for (const field of form.elements) if (field.name && field.value === "") field.disabled = true;
  });
  // a browser may restore old values of a form, or a whole page on Back; the address decides
  addEventListener("pageshow", () => document.querySelectorAll("form[data-choose]").forEach((form) => {
    for (const field of form.elements) field.disabled = false;
    form.reset();
  }));
})();
