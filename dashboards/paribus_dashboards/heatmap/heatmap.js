// Pointer on the heatmap: shows the numbers of the table below it; a click opens the samples of the cell.
(() => {
  const adopt = (map) => {
    const room = map.parentElement;
    const main = map.closest("main");
    const table = main.querySelector(".heat-table");
    const tip = room.querySelector(".heat-tip");
    const here = map.querySelector(".here");
    const [left, top, cell, row] = ["left", "top", "cell", "row"].map((name) => Number(map.dataset[name]));
    const heads = table.tHead.rows[0].cells;
    const lines = table.tBodies[0].rows;

    const at = (event) => {
      const box = map.getBoundingClientRect();
      const x = Math.floor((event.clientX - box.left - left) / cell);
      const y = Math.floor((event.clientY - box.top - top) / row);
      return y >= 0 && y < lines.length && x < heads.length - 2 ? { x: Math.max(-1, x), y } : null;
    };

    // the samples of a prompt at a step, or the heatmap of the prompts that share a row; empty in an exported file
    const target = ({ x, y }) => {
      const link = lines[y].cells[0].querySelector("a");
      if (!link.href || !lines[y].dataset.key || x < 0) return link.href;
      const address = new URL(link.href);
      address.searchParams.set("step", heads[x + 2].dataset.step);
      return address.href;
    };

    map.addEventListener("pointermove", (event) => {
      const place = at(event);
      tip.hidden = !place || place.x < 0;
      here.setAttribute("width", tip.hidden ? 0 : cell);
      map.style.cursor = place && target(place) ? "pointer" : "";
      if (tip.hidden) return;
      here.setAttribute("height", row);
      here.setAttribute("x", left + place.x * cell);
      here.setAttribute("y", top + place.y * row);
      const line = lines[place.y];
      const value = line.cells[place.x + 2].textContent;
      const what = value ? value.replace(" =", ", no spread") : "no group";
      tip.textContent = `${line.dataset.key ? "" : "prompts "}${line.cells[0].textContent}, step ${heads[place.x + 2].textContent}: ${what}`;
      const x = left + (place.x + 1) * cell + 6;
      const far = x - room.scrollLeft > room.clientWidth / 2;
      tip.style.left = `${Math.max(room.scrollLeft, far ? x - cell - 12 - tip.offsetWidth : x)}px`;
      tip.style.top = `${top + place.y * row - 4}px`;
    });
    map.addEventListener("pointerleave", () => { tip.hidden = true; here.setAttribute("width", 0); });
    map.addEventListener("click", (event) => {
      const place = at(event);
      if (place && target(place)) location.assign(target(place));
    });
  };

  const look = (where) => where.querySelectorAll("svg.heatmap").forEach(adopt);
  document.addEventListener("paribus:swapped", (event) => look(event.target));
  look(document);
})();
