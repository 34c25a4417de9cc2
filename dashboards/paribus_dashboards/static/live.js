// Polling: <div data-poll="/..." data-every="5"> is replaced by the answer; an unchanged part costs a 304 and no redraw.
// data-part="#id" takes this part of the answer. data-again="1" inside it polls after so many seconds.
(() => {
  if (window.PARIBUS_DATA) return;
  const away = document.querySelector(".away");
  const unreachable = away.textContent;
  const states = new WeakMap();

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

  const poll = async (element) => {
    const state = states.get(element);
    state.busy = true;
    try {
      const answer = await fetch(element.dataset.poll, {
        headers: state.tag ? { "If-None-Match": state.tag } : {}, credentials: "same-origin", cache: "no-store",
      });
      if (answer.status === 200) {
        const html = await answer.text();
        state.tag = answer.headers.get("ETag");
        if (element.isConnected) swap(element, html);
      }
      state.trouble = refused(answer.status);
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

  setInterval(tick, 500);
  document.addEventListener("visibilitychange", tick);
  tick();
})();
