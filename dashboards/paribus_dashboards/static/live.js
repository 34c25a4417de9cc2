// Polling: <div data-poll="/..." data-every="5"> is replaced by the answer; an unchanged part costs a 304 and no redraw.
// data-part="#id" takes this part of the answer. data-again="1" inside it polls after so many seconds. With data-merge,
// the elements with a data-key that are new are inserted and the others stay: charts that are drawn are not drawn again.
// With data-reload, an answer loads the whole page again; data-poll="" is the address of the page.
(() => {
  if (window.PARIBUS_DATA) return;
  const away = document.querySelector(".away");
  const unreachable = away.textContent;
  const states = new WeakMap();
  let skew = 0; // milliseconds by which the clock of the server is ahead of this one

  // shows the trouble of any part: an answered part does not hide the trouble of another
  const report = () => {
    const parts = [...document.querySelectorAll("[data-poll]")];
    const text = parts.map((e) => states.get(e)?.trouble).find(Boolean);
    away.hidden = !text;
    if (text && away.textContent !== text) away.textContent = text;
  };

  const refused = (status) => {
    if (status === 200 || status === 304) return "";
    if (status >= 500) return "A part of this page is not available now; the page will retry.";
    if (status === 401) return "This page is no longer updated: the server asks for its token. Open the address with ?token=... again.";
    return `This page is no longer updated: the server answered with status ${status}. Reload it.`;
  };

  const due = (element) => {
    const again = element.querySelector("[data-again]");
    return Number(again ? again.dataset.again : element.dataset.every || 5) * 1000;
  };

  const pathTo = (element, within) => {
    const steps = [];
    for (let e = element; e && e !== within; e = e.parentElement) steps.unshift([...e.parentElement.children].indexOf(e));
    return steps;
  };

  // the focused element keeps the focus, found by its id or address, else by its position
  const swap = (element, html) => {
    const focused = element.contains(document.activeElement) && document.activeElement !== element ? document.activeElement : null;
    const mark = focused && { id: focused.id, href: focused.getAttribute("href"), path: pathTo(focused, element) };
    const scrolls = [...element.querySelectorAll(".scroll")].map((e) => [e.scrollLeft, e.scrollTop]);
    const open = [...element.querySelectorAll("details")].map((d) => d.open);
    const parsed = new DOMParser().parseFromString(html, "text/html");
    const part = element.dataset.part ? parsed.querySelector(element.dataset.part) : null;
    if (element.dataset.merge !== undefined) return part && merge(element, part);
    element.replaceChildren(...(part ? [part] : [...parsed.body.childNodes]));
    element.querySelectorAll(".scroll").forEach((e, i) => { if (scrolls[i]) [e.scrollLeft, e.scrollTop] = scrolls[i]; });
    element.querySelectorAll("details").forEach((d, i) => { if (open[i] !== undefined) d.open = open[i]; });
    if (mark) {
      const same = (mark.id && document.getElementById(mark.id))
        || (mark.href && [...element.querySelectorAll("a")].find((a) => a.getAttribute("href") === mark.href))
        || mark.path.reduce((e, i) => e?.children[i], element);
      same?.focus({ preventScroll: true });
    }
    element.dispatchEvent(new CustomEvent("paribus:swapped", { bubbles: true }));
  };

  const keyed = (where) => [...where.querySelectorAll("[data-key]")];

  const merge = (element, part) => {
    for (const next of keyed(part)) {
      const now = keyed(element).find((e) => e.dataset.key === next.dataset.key);
      const [old, chart] = [now?.querySelector(".chart"), next.querySelector(".chart")];
      if (!now) insert(element, next);
      else if (old && chart) follow(old, chart);
      else if (now.textContent.trim() !== next.textContent.trim()) now.replaceChildren(...next.childNodes);
    }
    element.dispatchEvent(new CustomEvent("paribus:swapped", { bubbles: true }));
  };

  // in the same group, before the first of those that follow it
  const insert = (element, next) => {
    const group = next.parentElement.dataset.group;
    const into = group ? element.querySelector(`[data-group="${group}"]`) : element;
    const after = [];
    for (let e = next.nextElementSibling; e; e = e.nextElementSibling) after.push(e.dataset.key);
    into?.insertBefore(document.importNode(next, true), [...into.children].find((e) => e.dataset.key && after.includes(e.dataset.key)) || null);
  };

  const follow = (old, chart) => {
    if (old.dataset.src === chart.dataset.src) return;
    for (const name of ["data-src", "data-raw", "aria-label"]) if (chart.hasAttribute(name)) old.setAttribute(name, chart.getAttribute(name));
    window.paribusCharts.changed(old);
  };

  const poll = async (element) => {
    const state = states.get(element);
    const reloads = "reload" in element.dataset;
    state.busy = true;
    try {
      const answer = await fetch(element.dataset.poll, {
        headers: state.tag ? { "If-None-Match": state.tag } : {}, credentials: "same-origin", cache: "no-store",
      });
      const date = Date.parse(answer.headers.get("Date"));
      if (date) skew = date - Date.now();
      if (answer.status === 200 && reloads) location.reload();
      else if (answer.status === 200) {
        const html = await answer.text();
        state.tag = answer.headers.get("ETag");
        if (element.isConnected) swap(element, html);
      }
      state.trouble = reloads ? "" : refused(answer.status); // that page has said so
    } catch {
      state.trouble = unreachable;
    }
    report();
    state.busy = false;
    state.next = Date.now() + due(element);
  };

  const tick = () => {
    if (document.hidden) return;
    for (const element of document.querySelectorAll("[data-poll]")) {
      if (!states.has(element)) states.set(element, { tag: null, busy: false, next: Date.now() + due(element) });
      const state = states.get(element);
      if (!state.busy && Date.now() >= state.next) poll(element);
    }
  };

  // ---- chips: <span data-since> has the time of a run's newest line, <span data-until> when its last one is expected ----

  const span = (ms) => {
    const s = Math.max(0, Math.round(ms / 1000));
    if (s < 100) return `${s} s`;
    if (s < 100 * 60) return `${Math.round(s / 60)} min`;
    return s < 48 * 3600 ? `${(s / 3600).toFixed(s < 36000 ? 1 : 0)} h` : `${Math.round(s / 86400)} days`;
  };

  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  const fillChips = () => {
    const now = Date.now() + skew;
    for (const e of document.querySelectorAll("[data-since]")) say(e, `last line ${span(now - e.dataset.since)} ago`);
    for (const e of document.querySelectorAll("[data-until]")) say(e, e.dataset.until > now ? `ETA ${span(e.dataset.until - now)}` : "ETA now");
  };
  setInterval(fillChips, 1000);
  document.addEventListener("paribus:swapped", fillChips);
  fillChips();

  setInterval(tick, 500);
  document.addEventListener("visibilitychange", tick);
  tick();
})();
