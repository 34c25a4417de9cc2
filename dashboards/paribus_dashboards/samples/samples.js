// The step slider: its stops are the steps with samples; releasing it submits the form.
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

  // it keeps the focus on the next page, so that arrow keys move through the steps
  const slider = document.querySelector("input[data-steps]");
  slider?.addEventListener("change", () => sessionStorage.setItem("slider", location.pathname));
  if (sessionStorage.getItem("slider") === location.pathname) slider?.focus({ preventScroll: true });
  sessionStorage.removeItem("slider");
})();
