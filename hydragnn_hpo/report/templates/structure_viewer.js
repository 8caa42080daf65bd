/* A small viewer of one structure: spheres and bonds on a canvas, turned by drag or arrow keys,
   zoomed by wheel, two fingers or plus and minus. Atoms are bonded that are nearer than 1.2 times
   the sum of their covalent radii. Draws only when something has changed. */
"use strict";
(() => {
  const BOND = 1.2;  // largest distance of bonded atoms, in sums of their covalent radii
  const MOST_BONDED = 4000;  // atoms above which no bonds are sought
  const SIZE = 0.45;  // radius of a sphere, in covalent radii

  /* Arrays of numbers come as lists, or as bytes in base64 (plotly's typed arrays). */
  function numbers(given) {
    if (Array.isArray(given)) return given;
    const kinds = { i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array,
      i4: Int32Array, u4: Uint32Array, f4: Float32Array };
    const bytes = Uint8Array.from(atob(given.bdata), (letter) => letter.charCodeAt(0));
    return new kinds[given.dtype](bytes.buffer);
  }

  const unpacked = new WeakMap();

  function unpack(all) {
    if (!unpacked.has(all)) {
      const sizes = numbers(all.sizes);
      const starts = [0];
      for (const size of sizes) starts.push(starts.at(-1) + size);
      unpacked.set(all, { starts, atoms: numbers(all.numbers), steps: numbers(all.steps),
        positions: numbers(all.positions) });
    }
    return unpacked.get(all);
  }

  /* Return atoms, bonds and cell of one of the packed structures, about the origin. */
  window.structureOf = (all, place) => {
    const { starts, atoms, steps, positions } = unpack(all);
    const found = [];
    for (let n = starts[place]; n < starts[place + 1]; n += 1) {
      const [symbol, colour, radius] = all.elements[atoms[n]];
      const at = [0, 1, 2].map((axis) => positions[3 * n + axis] * steps[place]);
      found.push({ symbol, colour, radius, at });
    }
    return { atoms: found, bonds: bondsOf(found), edges: edgesOf(all.cells[place]) };
  };

  /* Find pairs of near atoms with a grid of cubes, so that large structures take no time. */
  function bondsOf(atoms) {
    if (atoms.length > MOST_BONDED) return [];
    const reach = 2 * BOND * Math.max(...atoms.map((atom) => atom.radius));
    const cubes = new Map();
    const cubeOf = (at) => at.map((x) => Math.floor(x / reach));
    atoms.forEach((atom, n) => {
      const key = cubeOf(atom.at).join();
      cubes.set(key, [...(cubes.get(key) ?? []), n]);
    });
    const bonds = [];
    atoms.forEach((atom, n) => {
      const [i, j, k] = cubeOf(atom.at);
      for (let cube = 0; cube < 27; cube += 1) {
        const key = [i + (cube % 3) - 1, j + (Math.floor(cube / 3) % 3) - 1, k + Math.floor(cube / 9) - 1];
        for (const m of cubes.get(key.join()) ?? []) {
          const other = atoms[m];
          const near = BOND * (atom.radius + other.radius);
          if (m > n && Math.hypot(...atom.at.map((x, axis) => x - other.at[axis])) < near) bonds.push([n, m]);
        }
      }
    });
    return bonds;
  }

  /* Return the twelve edges of a cell: origin and three vectors. */
  function edgesOf(cell) {
    if (!cell) return [];
    const corner = (bits) => [0, 1, 2].map((axis) => cell[axis] +
      [0, 1, 2].reduce((sum, v) => sum + (bits >> v & 1) * cell[3 + 3 * v + axis], 0));
    const edges = [];
    for (let bits = 0; bits < 8; bits += 1) {
      for (let v = 0; v < 3; v += 1) {
        if (!(bits >> v & 1)) edges.push([corner(bits), corner(bits | 1 << v)]);
      }
    }
    return edges;
  }

  const radiusOf = (atom) => Math.max(0.26, SIZE * atom.radius);
  const multiply = (a, b) => a.map((row) => [0, 1, 2].map((k) => row.reduce((sum, x, n) => sum + x * b[n][k], 0)));
  const about = (axis, angle) => {
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    return axis === "x" ? [[1, 0, 0], [0, c, -s], [0, s, c]] : [[c, 0, s], [0, 1, 0], [-s, 0, c]];
  };

  function shade(colour, amount) {
    const parts = [1, 3, 5].map((n) => parseInt(colour.slice(n, n + 2), 16));
    const to = amount > 0 ? 255 : 0;
    return `rgb(${parts.map((part) => Math.round(part + (to - part) * Math.abs(amount))).join()})`;
  }

  /* Draw a structure into a canvas, and turn it as the reader wishes. */
  window.drawStructure = (canvas, structure) => {
    const view = { turn: multiply(about("x", -0.35), about("y", 0.5)), zoom: 1, waiting: false };
    const ends = [...structure.atoms.map((atom) => [atom.at, atom.radius]),
      ...structure.edges.flat().map((at) => [at, 0.2])];
    const extent = Math.max(1, ...ends.map(([at, radius]) => Math.hypot(...at) + radius));
    const turned = (at) => view.turn.map((row) => row[0] * at[0] + row[1] * at[1] + row[2] * at[2]);

    function draw() {
      view.waiting = false;
      const { clientWidth: width, clientHeight: height } = canvas;
      const dots = window.devicePixelRatio || 1;
      [canvas.width, canvas.height] = [width * dots, height * dots];
      const ink = canvas.getContext("2d");
      ink.scale(dots, dots);
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(`--${name}`).trim();
      const scale = view.zoom * Math.min(width, height) / (2.1 * extent);
      const place = ([x, y]) => [width / 2 + scale * x, height / 2 - scale * y];
      const atoms = structure.atoms.map((atom) => ({ ...atom, seen: turned(atom.at) }));
      const parts = atoms.map((atom) => ({ depth: atom.seen[2], draw: () => sphere(ink, place(atom.seen), atom, scale) }));
      for (const [n, m] of structure.bonds) {
        const [a, b] = [atoms[n], atoms[m]];
        const depth = (a.seen[2] + b.seen[2]) / 2;
        const [from, to] = [surface(a, b), surface(b, a)].map(place);
        parts.push({ depth, draw: () => bond(ink, from, to, a, b, scale) });
      }
      for (const [from, to] of structure.edges.map((edge) => edge.map(turned))) {
        const line = () => stroke(ink, [place(from), place(to)], colour("faint"), 1);
        parts.push({ depth: (from[2] + to[2]) / 2, draw: line });
      }
      parts.sort((a, b) => a.depth - b.depth).forEach((part) => part.draw());
      canvas.dataset.atoms = atoms.length;
      canvas.dataset.bonds = structure.bonds.length;
    }

    /* Return where a bond leaves the sphere of its first atom. */
    function surface(a, b) {
      const length = Math.hypot(...a.seen.map((x, axis) => b.seen[axis] - x));
      const share = Math.min(0.45, 0.9 * radiusOf(a) / Math.max(length, 1e-6));
      return a.seen.map((x, axis) => x + share * (b.seen[axis] - x));
    }

    function stroke(ink, points, colour, width) {
      ink.beginPath();
      points.forEach(([x, y], n) => (n ? ink.lineTo(x, y) : ink.moveTo(x, y)));
      ink.strokeStyle = colour;
      ink.lineWidth = width;
      ink.lineCap = "round";
      ink.stroke();
    }

    function bond(ink, from, to, a, b, scale) {
      const middle = [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2];
      const width = Math.max(2, 0.22 * scale);
      stroke(ink, [from, to], "rgba(60,60,60,.9)", width + 1.5);
      stroke(ink, [from, middle], shade(a.colour, -0.12), width);
      stroke(ink, [middle, to], shade(b.colour, -0.12), width);
    }

    function sphere(ink, [x, y], atom, scale) {
      const radius = scale * radiusOf(atom);
      const light = ink.createRadialGradient(x - radius / 3, y - radius / 3, radius / 8, x, y, radius);
      light.addColorStop(0, shade(atom.colour, 0.5));
      light.addColorStop(0.6, atom.colour);
      light.addColorStop(1, shade(atom.colour, -0.35));
      ink.beginPath();
      ink.arc(x, y, radius, 0, 2 * Math.PI);
      ink.fillStyle = light;
      ink.fill();
      ink.strokeStyle = "rgba(40,40,40,.7)";
      ink.lineWidth = 0.8;
      ink.stroke();
      if (radius < 9) return;
      ink.font = `${Math.round(0.9 * radius)}px system-ui, sans-serif`;
      ink.textAlign = "center";
      ink.textBaseline = "middle";
      ink.fillStyle = brightness(atom.colour) > 0.45 ? "#111" : "#fff";
      ink.fillText(atom.symbol, x, y + 1);
    }

    function brightness(colour) {
      const [red, green, blue] = [1, 3, 5].map((n) => parseInt(colour.slice(n, n + 2), 16) / 255);
      return 0.3 * red + 0.59 * green + 0.11 * blue;
    }

    function change() {
      if (!view.waiting) requestAnimationFrame(draw);
      view.waiting = true;
    }

    function rotate(across, down) {
      view.turn = multiply(multiply(about("x", down), about("y", across)), view.turn);
      change();
    }

    function zoom(times) {
      view.zoom = Math.min(12, Math.max(0.3, view.zoom * times));
      change();
    }

    const fingers = new Map();
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
      if (other) {
        const apart = (finger) => Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
        zoom(apart(event) / Math.max(1, apart(before)));
      } else {
        rotate((event.clientX - before.clientX) / 120, (event.clientY - before.clientY) / 120);
      }
      fingers.set(event.pointerId, event);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
    }
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 600));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const turns = { ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, -0.2], ArrowDown: [0, 0.2] };
      if (turns[event.key]) rotate(...turns[event.key]);
      else if (event.key === "+" || event.key === "=") zoom(1.2);
      else if (event.key === "-") zoom(1 / 1.2);
      else return;
      event.preventDefault();
    });
    change();
  };
})();
