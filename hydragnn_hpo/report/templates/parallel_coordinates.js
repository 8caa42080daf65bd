/* Parallel coordinates on a canvas, from what plotly calls "parcoords": brushes for mouse, finger
   and keys, and a click on a line opens its trial. plotly's own need WebGL and make code out of text, which the page's policy forbids. */
"use strict";
(() => {
  const KINDS = { f4: Float32Array, f8: Float64Array, i1: Int8Array, u1: Uint8Array,
    i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array };
  const ROOM = 74;  // pixels between axes, at least
  const TOP = 64, BOTTOM = 16, LEFT = 64, RIGHT = 68;
  const STEP = 0.05;  // of an axis, for keys
  const NEAR = 6;  // pixels from a line that still mean it
  const FEW = 12;  // kept lines that are listed by name
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  function numbers(given) {
    if (!given || !given.bdata) return given ?? [];
    const bytes = Uint8Array.from(atob(given.bdata), (letter) => letter.charCodeAt(0));
    return Array.from(new KINDS[given.dtype](bytes.buffer));
  }

  function svg(name, attributes, parent, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function html(name, attributes, parent) {
    const made = Object.assign(document.createElement(name), attributes);
    parent.append(made);
    return made;
  }

  /* Give the colour of a value between two ends, from stops of #rrggbb. */
  function scale(stops, low, high) {
    const parsed = stops.map(([at, hex]) => [at, [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16))]);
    return (value) => {
      const at = clamp((value - low) / (high - low || 1), 0, 1);
      const above = Math.max(1, parsed.findIndex(([stop]) => stop >= at));
      const [[a, first], [b, second]] = [parsed[above - 1], parsed[above]];
      const part = (at - a) / (b - a || 1);
      return `rgb(${first.map((x, k) => Math.round(x + part * (second[k] - x))).join(",")})`;
    };
  }

  /* Give the share of a new range at which the value of an old one's stands; an axis's ends stay its ends. */
  function moved(share, [from, to], [low, high]) {
    if (share <= 0 || share >= 1) return share;
    return Math.min(1, Math.max(0, (from + share * (to - from) - low) / (high - low || 1)));
  }

  class Lines {
    constructor(chart) {
      this.chart = chart;
      this.height = chart.clientHeight;
      this.brushes = new Map();  // of an axis: [low, high] as shares of it
      this.waiting = false;
      this.pointed = -1;  // the line below the pointer
      new ResizeObserver(() => {
        if (this.axes && chart.clientWidth !== this.seen) this.build();
      }).observe(chart);
    }

    show(trace, colour) {
      const before = this.axes;
      this.colour = colour;
      this.axes = trace.dimensions.map((d) => ({ label: d.label, names: d.ticktext ?? [],
        values: numbers(d.values), ticks: numbers(d.tickvals), range: d.range }));
      this.names = trace.customdata ?? [];
      this.order ??= this.axes.map((_, k) => k);
      for (const [number, ends] of before ? this.brushes : []) {
        const [from, to] = [before[number].range, this.axes[number].range];
        this.brushes.set(number, ends.map((end) => moved(end, from, to)));
      }
      const shades = numbers(trace.line.color);
      const shade = scale(trace.line.colorscale, trace.line.cmin, trace.line.cmax);
      this.strokes = shades.map(shade);
      this.ranked = shades.map((_, k) => k).sort((a, b) => shades[a] - shades[b]);
      this.build();
    }

    share(axis, value) {
      const [low, high] = axis.range;
      return (value - low) / (high - low || 1);
    }

    x(place) { return LEFT + place * this.step; }
    y(share) { return TOP + (1 - share) * this.depth; }

    build() {
      const { chart } = this;
      const focused = chart.contains(document.activeElement) ? document.activeElement.dataset.axis : null;
      this.seen = chart.clientWidth;
      chart.replaceChildren();
      chart.setAttribute("role", "group");
      const bar = html("p", { className: "brushed" }, chart);
      this.counter = html("span", { role: "status" }, bar);
      this.counter.setAttribute("role", "status");
      const free = html("button", { type: "button", textContent: "let go of all" }, bar);
      free.addEventListener("click", () => { this.brushes.clear(); this.paint(); });
      this.free = free;
      this.list = html("span", { className: "kept" }, bar);
      this.listed = "";
      const gaps = Math.max(1, this.axes.length - 1);
      const width = Math.max(this.seen, LEFT + RIGHT + ROOM * gaps);
      const height = this.height - 40;
      this.step = (width - LEFT - RIGHT) / gaps;
      this.depth = height - TOP - BOTTOM;
      const box = html("div", { className: "lines" }, chart);
      box.style.cssText = `width:${width}px;height:${height}px`;
      const canvas = html("canvas", {}, box);
      const fine = devicePixelRatio || 1;
      Object.assign(canvas, { width: width * fine, height: height * fine });
      this.context = canvas.getContext("2d");
      this.context.scale(fine, fine);
      this.size = [width, height];
      this.svg = svg("svg", { width, height }, box);
      this.svg.addEventListener("pointermove", (event) => this.point(this.nearest(event)));
      this.svg.addEventListener("pointerleave", () => this.point(-1));
      this.svg.addEventListener("click", (event) => this.openLine(this.nearest(event)));
      this.marks = new Map();
      this.order.forEach((axis, place) => this.axis(axis, place));
      this.paint();
      if (focused) this.svg.querySelector(`[data-axis="${focused}"]`)?.focus();
    }

    axis(number, place) {
      const axis = this.axes[number];
      const group = svg("g", { transform: `translate(${this.x(place)},0)`, tabindex: 0, role: "group",
        "data-axis": number }, this.svg);
      const [top, bottom] = [this.y(1), this.y(0)];
      svg("line", { y1: top, y2: bottom, stroke: this.colour("faint") }, group);
      axis.ticks.forEach((tick, k) => {
        const share = this.share(axis, tick);
        if (share < -0.01 || share > 1.01) return;
        svg("line", { x1: -4, x2: 0, y1: this.y(share), y2: this.y(share), stroke: this.colour("faint") }, group);
        svg("text", { x: -7, y: this.y(share), dy: "0.32em", "text-anchor": "end" }, group, axis.names[k]);
      });
      const turn = { x: 0, y: top - 14, class: "name", "text-anchor": "start", transform: `rotate(-25 0 ${top - 14})` };
      const name = svg("text", turn, group, axis.label);
      const mark = svg("rect", { x: -7, width: 14, class: "brush", visibility: "hidden" }, group);
      const hit = svg("rect", { x: -15, width: 30, y: top - 6, height: bottom - top + 12, class: "hit" }, group);
      this.marks.set(number, { group, mark });
      hit.addEventListener("pointerdown", (event) => this.drag(event, number, hit));
      name.addEventListener("pointerdown", (event) => this.carry(event, number, name));
      group.addEventListener("keydown", (event) => this.key(event, number));
    }

    /* -- brushes -- */

    drag(event, number, hit) {
      const share = (e) => clamp(1 - (e.clientY - this.svg.getBoundingClientRect().top - TOP) / this.depth, 0, 1);
      const begin = share(event), old = this.brushes.get(number);
      const inside = old && begin >= old[0] && begin <= old[1];
      let moved = false;
      event.preventDefault();
      hit.setPointerCapture(event.pointerId);
      hit.onpointermove = (e) => {
        const now = share(e);
        moved ||= Math.abs(now - begin) * this.depth > 3;
        if (!moved) return;
        this.set(number, inside ? this.shifted(old, now - begin) : [Math.min(begin, now), Math.max(begin, now)]);
      };
      hit.onpointerup = hit.onpointercancel = () => {
        hit.onpointermove = hit.onpointerup = hit.onpointercancel = null;
        if (!moved && !inside) this.set(number, null);
      };
    }

    shifted([low, high], by) {
      const part = clamp(by, -low, 1 - high);
      return [low + part, high + part];
    }

    key(event, number) {
      const old = this.brushes.get(number) ?? [0.4, 0.6];
      const up = { ArrowUp: STEP, ArrowDown: -STEP }[event.key];
      const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.set(number, null);
      else if (along) this.move(number, this.order.indexOf(number) + along);
      else if (up && event.shiftKey) this.set(number, [clamp(old[0] - up, 0, 0.5 * (old[0] + old[1])),
        clamp(old[1] + up, 0.5 * (old[0] + old[1]), 1)]);
      else if (up) this.set(number, this.brushes.has(number) ? this.shifted(old, up) : old);
      else return;
      event.preventDefault();
    }

    set(number, brush) {
      if (brush) this.brushes.set(number, brush);
      else this.brushes.delete(number);
      this.paintSoon();
    }

    paintSoon() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.paint(); });
    }

    /* -- lines -- */

    /* Return the kept line next to the pointer, or -1: on an axis the pointer means a brush. */
    nearest(event) {
      if (event.target !== this.svg) return -1;
      const edge = this.svg.getBoundingClientRect();
      const [x, y] = [event.clientX - edge.left, event.clientY - edge.top];
      const place = Math.floor((x - LEFT) / this.step);
      if (place < 0 || place > this.order.length - 2) return -1;
      const part = (x - this.x(place)) / this.step;
      const ends = [place, place + 1].map((of) => this.axes[this.order[of]]);
      let best = -1, least = NEAR;
      for (const line of this.ranked) {
        if (!this.passes(line)) continue;
        const [from, to] = ends.map((axis) => this.y(this.share(axis, axis.values[line])));
        const apart = Math.abs(from + part * (to - from) - y) / Math.hypot(1, (to - from) / this.step);
        if (apart <= least) [best, least] = [line, apart];
      }
      return best;
    }

    point(line) {
      if (line === this.pointed) return;
      this.pointed = line;
      this.svg.style.cursor = line < 0 ? "" : "pointer";
      this.paintSoon();
    }

    openLine(line) {
      if (line >= 0 && this.names[line]) window.report.open(this.names[line]);
    }

    /* -- order of the axes -- */

    carry(event, number, name) {
      event.preventDefault();
      name.setPointerCapture(event.pointerId);
      name.onpointerup = (e) => {
        name.onpointerup = null;
        const left = this.svg.getBoundingClientRect().left;
        this.move(number, Math.round((e.clientX - left - LEFT) / this.step));
      };
    }

    move(number, place) {
      const rest = this.order.filter((axis) => axis !== number);
      rest.splice(clamp(place, 0, rest.length), 0, number);
      if (rest.join() === this.order.join()) return;
      this.order = rest;
      this.build();
    }

    /* -- painting -- */

    passes(line) {
      for (const [number, [low, high]] of this.brushes) {
        const axis = this.axes[number];
        const share = this.share(axis, axis.values[line]);
        if (share < low || share > high) return false;
      }
      return true;
    }

    paint() {
      const { context, ranked } = this;
      const kept = ranked.filter((line) => this.passes(line));
      context.clearRect(0, 0, ...this.size);
      if (kept.length < ranked.length) {
        context.globalAlpha = 0.18;
        context.strokeStyle = this.colour("idle");
        context.beginPath();
        const inside = new Set(kept);
        for (const line of ranked) if (!inside.has(line)) this.trace(line);
        context.stroke();
      }
      context.globalAlpha = kept.length > 1000 ? 0.3 : kept.length > 200 ? 0.5 : 0.85;
      for (const line of kept) {
        context.strokeStyle = this.strokes[line];
        context.beginPath();
        this.trace(line);
        context.stroke();
      }
      if (kept.includes(this.pointed)) {
        context.globalAlpha = 1;
        context.strokeStyle = this.colour("ink");
        context.lineWidth = 2.5;
        context.beginPath();
        this.trace(this.pointed);
        context.stroke();
        context.lineWidth = 1;
      }
      this.showCount(kept);
    }

    trace(line) {
      this.order.forEach((number, place) => {
        const axis = this.axes[number];
        const y = this.y(this.share(axis, axis.values[line]));
        if (place) this.context.lineTo(this.x(place), y);
        else this.context.moveTo(this.x(place), y);
      });
    }

    showCount(kept) {
      this.chart.dataset.kept = kept.length;
      this.free.hidden = !this.brushes.size;
      const name = kept.includes(this.pointed) ? this.names[this.pointed] : "";
      this.counter.textContent = `${kept.length} of ${this.ranked.length} lines${name && `; ${name}: click to open`}`;
      const listed = this.brushes.size && kept.length <= FEW ? kept.map((line) => this.names[line]) : [];
      if (listed.join() !== this.listed) {
        this.listed = listed.join();
        this.list.replaceChildren();
        for (const trial of listed) html("button", { type: "button", className: "open", textContent: trial }, this.list);
      }
      for (const [number, { group, mark }] of this.marks) {
        const brush = this.brushes.get(number);
        mark.setAttribute("visibility", brush ? "visible" : "hidden");
        group.setAttribute("aria-label", this.axes[number].label + (brush ? `, ${this.spoken(number, brush)}` : ""));
        if (!brush) continue;
        mark.setAttribute("y", this.y(brush[1]));
        mark.setAttribute("height", Math.max(1, (brush[1] - brush[0]) * this.depth));
      }
    }

    spoken(number, brush) {
      const axis = this.axes[number];
      const near = (share) => axis.ticks.map((tick, k) => [Math.abs(this.share(axis, tick) - share), axis.names[k]])
        .sort((a, b) => a[0] - b[0])[0]?.[1];
      return `brushed from about ${near(brush[0])} to about ${near(brush[1])}`;
    }
  }

  const shown = new WeakMap();
  window.drawLines = (chart, trace, colour) => {
    if (!shown.has(chart)) shown.set(chart, new Lines(chart));
    shown.get(chart).show(trace, colour);
  };
})();
