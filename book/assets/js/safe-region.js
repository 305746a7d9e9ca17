// The picture "the safe region": pointer, touch, keyboard, buttons and slider change a state, and every part is drawn anew.
(function () {
  "use strict";

  const maths = globalThis.safeRegionMaths;
  const show = globalThis.safeRegionPicture;
  const WHO = ["student", "teacher"];
  const STEP = { small: 0.1, large: 0.5 };   // nats of log-odds for one press
  const REACH = 30;                          // how near a pointer must be to a handle, in units of the picture
  const PLAY = 3000;                         // milliseconds from s = 0 to s = 1

  function install(widget) {
    const parts = new Map([...widget.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]));
    const slider = widget.querySelector("input[type=range]");
    const status = widget.querySelector("[role=status]");
    const play = widget.querySelector("[data-action=play]");
    let state = show.start();
    let frame = 0;
    let announcement = 0;

    function draw() {
      for (const [name, { text, ...attributes }] of Object.entries(show.picture(state))) {
        const node = parts.get(name);
        if (text !== undefined) node.textContent = text;
        for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      }
      for (const who of WHO) {
        const handle = parts.get(`whole.${who}`);
        handle.setAttribute("aria-valuenow", show.probability(state[who][0]));
        handle.setAttribute("aria-valuetext", show.spoken(state[who]));
      }
      slider.value = state.s;
      slider.setAttribute("aria-valuetext", `s = ${state.s.toFixed(2)}`);
      for (const button of widget.querySelectorAll("[data-setting]")) {
        const setting = show.SETTINGS[button.dataset.setting];
        const same = WHO.every((who) => setting[who].join() === state[who].join());
        button.setAttribute("aria-pressed", String(same));
      }
    }

    function change(next) {
      state = { ...state, ...next };
      draw();
      clearTimeout(announcement);
      announcement = setTimeout(() => { status.textContent = show.summary(state); }, 600);
    }

    // ---- pointer -----------------------------------------------------------------------------------

    function positionIn(svg, event) {
      const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return [x, y];
    }

    const views = {
      whole: { into: (p) => p, out: (b) => maths.intoTriangle(b, 0.001, 0.001) },
      corner: {
        into: (p) => maths.intoCorner(p, state.corner ?? show.cornerWidth(state.student)),
        out: (b) => maths.outOfCorner(maths.intoTriangle(b, 0.005, 0.001), state.corner),
      },
    };

    function grabbed(view, svg, event) {
      const [x, y] = positionIn(svg, event);
      const distance = (who) => {
        const point = show.toPoint(views[view].into(state[who]));
        return Math.hypot(point[0] - x, point[1] - y);
      };
      const who = distance("student") <= distance("teacher") ? "student" : "teacher";
      return distance(who) <= REACH ? who : null;
    }

    function drag(view, svg, who, first) {
      const at = show.toPoint(views[view].into(state[who]));
      const from = positionIn(svg, first);
      state = { ...state, corner: show.cornerWidth(state.student) };   // the magnification rests while dragging
      const move = (event) => {
        if (event.pointerId !== first.pointerId) return;
        const [x, y] = positionIn(svg, event);
        change({ [who]: views[view].out(show.fromPoint([at[0] + x - from[0], at[1] + y - from[1]])) });
      };
      const drop = (event) => {
        if (event.pointerId !== first.pointerId) return;
        window.removeEventListener("pointermove", move);
        window.removeEventListener("pointerup", drop);
        window.removeEventListener("pointercancel", drop);
        change({ corner: undefined });
      };
      window.addEventListener("pointermove", move);
      window.addEventListener("pointerup", drop);
      window.addEventListener("pointercancel", drop);
    }

    for (const svg of widget.querySelectorAll("svg[data-view]")) {
      svg.addEventListener("pointerdown", (event) => {
        const who = event.button === 0 ? grabbed(svg.dataset.view, svg, event) : null;
        if (who === null) return;
        event.preventDefault();
        stop();
        parts.get(`whole.${who}`).focus({ preventScroll: true });
        drag(svg.dataset.view, svg, who, event);
      });
    }

    // ---- keyboard ----------------------------------------------------------------------------------

    const KEYS = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageUp: [5, 0], PageDown: [-5, 0] };

    for (const who of WHO) {
      parts.get(`whole.${who}`).addEventListener("keydown", (event) => {
        const direction = KEYS[event.key];
        if (!direction || event.ctrlKey || event.altKey || event.metaKey) return;
        event.preventDefault();
        const step = event.shiftKey ? STEP.large : STEP.small;
        change({ [who]: maths.nudge(state[who], ...direction.map((value) => value * step)) });
      });
    }

    // ---- slider and buttons ------------------------------------------------------------------------

    function stop() {
      cancelAnimationFrame(frame);
      frame = 0;
      play.textContent = "Play";
    }

    function run() {
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) return change({ s: state.s < 1 ? 1 : 0 });
      const first = state.s < 1 ? state.s : 0;
      const began = performance.now();
      const step = (time) => {
        const s = Math.min(1, first + Math.max(0, time - began) / PLAY);
        change({ s });
        if (s < 1) frame = requestAnimationFrame(step);
        else stop();
      };
      play.textContent = "Stop";
      frame = requestAnimationFrame(step);
    }

    slider.addEventListener("input", () => { stop(); change({ s: Number(slider.value) }); });
    play.addEventListener("click", () => (frame ? stop() : run()));
    widget.querySelector("[data-action=reset]").addEventListener("click", () => { stop(); change(show.start()); });
    for (const button of widget.querySelectorAll("[data-setting]")) {
      button.addEventListener("click", () => { stop(); change(show.SETTINGS[button.dataset.setting]); });
    }

    for (const node of widget.querySelectorAll("[data-needs-script]")) node.hidden = false;
    for (const node of widget.querySelectorAll("[data-without-script]")) node.hidden = true;
    widget.querySelector("svg[data-view=whole]").setAttribute("role", "group");
    for (const who of WHO) {
      const slide = { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": 1 };
      for (const [key, value] of Object.entries(slide)) parts.get(`whole.${who}`).setAttribute(key, value);
    }
    widget.dataset.ready = "";
    draw();
  }

  document.querySelectorAll(".safe-region").forEach(install);
})();
