// Keys: j and k walk through what has the class "entry", / goes to the filter, digits to the pages, ? lists them.
(() => {
  const help = document.querySelector("dialog.help");
  const visible = (e) => e.offsetParent !== null;
  const entries = () => [...document.querySelectorAll("main .entry")].filter(visible);

  const walk = (by) => {
    const all = entries();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const to = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by));
    all[to].focus();
    all[to].scrollIntoView({ block: "nearest", inline: "nearest" });
  };

  const actions = {
    j: () => walk(1),
    k: () => walk(-1),
    "/": () => [...document.querySelectorAll("[data-filter], input[type=search]")].find(visible)?.focus(),
    "?": () => help.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, [contenteditable]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const links = [...document.querySelectorAll("header nav a")].filter(visible);
    const action = actions[event.key] || (/^[1-9]$/.test(event.key) && links[event.key - 1] && (() => links[event.key - 1].click()));
    if (!action) return;
    event.preventDefault();
    action();
  });
  document.addEventListener("click", (event) => { if (event.target.closest(".help-button")) help.showModal(); });

  // forms that choose: a change is enough, and what is empty stays out of the address
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-choose]");
    if (form) form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-choose]");
    if (form) for (const field of form.elements) if (field.name && field.value === "") field.disabled = true;
  });
})();
