/** The workflow as a graph: a column for each depth, a line for each need. */
import type { Node } from "../core";
import { duration } from "./format";

const COLUMN = 168;
const ROW = 46;
const BOX = { width: 132, height: 32 };

interface Place {
  readonly node: Node;
  readonly x: number;
  readonly y: number;
}

/** A node stands one column right of the furthest node it needs. Needs that never began are left out. */
export function layout(nodes: readonly Node[]): Place[] {
  const byName = new Map(nodes.map((node) => [node.node, node]));
  const depths = new Map<string, number>();
  const depth = (name: string, seen: readonly string[]): number => {
    const known = depths.get(name);
    if (known !== undefined) return known;
    const needs = byName.get(name)!.needs.filter((need) => byName.has(need) && !seen.includes(need));
    const own = needs.length === 0 ? 0 : 1 + Math.max(...needs.map((need) => depth(need, [...seen, name])));
    depths.set(name, own);
    return own;
  };
  const rows = new Map<number, number>();
  return nodes.map((node) => {
    const column = depth(node.node, [node.node]);
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    return { node, x: column * COLUMN, y: row * ROW };
  });
}

export function Graph({ nodes }: { nodes: readonly Node[] }) {
  const places = layout(nodes);
  const at = new Map(places.map((place) => [place.node.node, place]));
  const width = Math.max(...places.map((place) => place.x)) + BOX.width + 2;
  const height = Math.max(...places.map((place) => place.y)) + BOX.height + 2;
  const label = nodes.map((node) => `${node.node} ${node.status}`).join(", ");
  return (
    <div class="scroll graph" tabIndex={0} role="region" aria-label="The workflow">
      <svg width={width} height={height} viewBox={`-1 -1 ${width} ${height}`} role="img" aria-label={label}>
        {places.flatMap(({ node, x, y }) =>
          node.needs.filter((need) => at.has(need)).map((need) => <Edge key={`${need} ${node.node}`} from={at.get(need)!} x={x} y={y} />),
        )}
        {places.map(({ node, x, y }) => (
          <g key={node.node} class={`node ${node.status}`} transform={`translate(${x} ${y})`}>
            <rect width={BOX.width} height={BOX.height} rx="6" />
            <text x="10" y="20">
              {node.node.length > 12 ? `${node.node.slice(0, 11)}…` : node.node}
            </text>
            <text class="node-ms" x={BOX.width - 8} y="20" text-anchor="end">
              {node.status === "running" ? "…" : node.status === "completed" ? duration(node.ms) : node.status}
            </text>
          </g>
        ))}
      </svg>
    </div>
  );
}

function Edge({ from, x, y }: { from: Place; x: number; y: number }) {
  const [x1, y1, y2] = [from.x + BOX.width, from.y + BOX.height / 2, y + BOX.height / 2];
  const middle = (x1 + x) / 2;
  return <path class="edge" d={`M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x} ${y2}`} />;
}
