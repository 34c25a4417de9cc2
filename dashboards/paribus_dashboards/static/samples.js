// The step slider: its stops are the steps that have samples; the form asks for the one where it is let go.
(() => {
  document.addEventListener("input", (event) => {
    const slider = event.target.closest("input[data-steps]");
    if (!slider) return;
    const step = slider.dataset.steps.split(",")[slider.value];
    const form = slider.form;
    form.elements.step.value = step;
    form.querySelector("output").value = step;
    slider.setAttribute("aria-valuetext", `step ${step}`);
  });

  // it keeps the focus on the page that it leads to, so that arrow keys walk through the steps
  const slider = document.querySelector("input[data-steps]");
  slider?.addEventListener("change", () => sessionStorage.setItem("slider", location.pathname));
  if (sessionStorage.getItem("slider") === location.pathname) slider?.focus({ preventScroll: true });
  sessionStorage.removeItem("slider");
})();
