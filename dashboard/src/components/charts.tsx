import type { JSX } from 'preact';
import { compact } from '../format.ts';
import type { Tone } from './parts.tsx';

const WIDTH = 560;
const HEIGHT = 150;
/** Space in the picture for the labels of the axes. */
const LEFT = 46;
const BOTTOM = 18;
/** Width of a column at most. */
const MAX_COLUMN = 60;
const PLOT_WIDTH = WIDTH - LEFT;
const PLOT_HEIGHT = HEIGHT - BOTTOM;

/** The frame of a chart: its title, the largest and the smallest value, and the first and the last label. */
function Frame(props: {
  readonly title: string;
  readonly top: string;
  readonly bottom: string;
  readonly first: string;
  readonly last: string;
  readonly children: JSX.Element | JSX.Element[];
}): JSX.Element {
  const { title, top, bottom, first, last, children } = props;
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label={`${title}: ${bottom} to ${top}, ${first} to ${last}`}
      >
        <title>{title}</title>
        <line x1={LEFT} y1={PLOT_HEIGHT} x2={WIDTH} y2={PLOT_HEIGHT} class="axis" />
        <text x={LEFT - 4} y={10} text-anchor="end">
          {top}
        </text>
        <text x={LEFT - 4} y={PLOT_HEIGHT} text-anchor="end">
          {bottom}
        </text>
        <text x={LEFT} y={HEIGHT - 4}>
          {first}
        </text>
        <text x={WIDTH} y={HEIGHT - 4} text-anchor="end">
          {last}
        </text>
        {children}
      </svg>
    </figure>
  );
}

export type Column = {
  readonly label: string;
  readonly parts: readonly { readonly name: string; readonly count: number; readonly tone: Tone | 'model' }[];
};

/** Columns of counts, each divided into parts. Pointing at one shows its numbers. */
export function Columns({ title, columns }: { title: string; columns: readonly Column[] }): JSX.Element {
  const totals = columns.map(({ parts }) => parts.reduce((sum, { count }) => sum + count, 0));
  const most = Math.max(1, ...totals);
  const width = Math.min(MAX_COLUMN, PLOT_WIDTH / Math.max(1, columns.length));
  return (
    <Frame
      title={title}
      top={compact(most)}
      bottom="0"
      first={columns[0]?.label ?? ''}
      last={columns.length > 1 ? (columns.at(-1)?.label ?? '') : ''}
    >
      {columns.map(({ label, parts }, index) => (
        <g key={label}>
          <title>{`${label}: ${parts.map(({ name, count }) => `${name} ${count}`).join(', ')}`}</title>
          {stacked(parts, most).map(({ tone, name, y, height }) => (
            <rect
              key={name}
              class={`column ${tone}`}
              x={LEFT + index * width + 0.5}
              y={y}
              width={Math.max(1, width - 1)}
              height={height}
            />
          ))}
        </g>
      ))}
    </Frame>
  );
}

function stacked(parts: Column['parts'], most: number) {
  let y = PLOT_HEIGHT;
  return parts.map(({ name, count, tone }) => {
    const height = (PLOT_HEIGHT * count) / most;
    y -= height;
    return { name, tone, y, height };
  });
}

/** A value with its spread on both sides. */
export type Point = { readonly label: string; readonly value: number; readonly spread: number };

/** A line through values in order, with a band of their spread. */
export function Line({ title, points }: { title: string; points: readonly Point[] }): JSX.Element {
  const lows = points.map(({ value, spread }) => value - spread);
  const highs = points.map(({ value, spread }) => value + spread);
  const least = Math.min(...lows);
  const range = Math.max(...highs) - least || 1;
  const x = (index: number): number => LEFT + (PLOT_WIDTH * index) / Math.max(1, points.length - 1);
  const y = (value: number): number => PLOT_HEIGHT - (PLOT_HEIGHT * (value - least)) / range;
  const path = (values: readonly number[], from = 0): string[] =>
    values.map((value, index) => `${x(Math.abs(from - index))},${y(value)}`);
  const band = [...path(highs), ...path([...lows].reverse(), lows.length - 1)];
  return (
    <Frame
      title={title}
      top={compact(least + range)}
      bottom={compact(least)}
      first={points[0]?.label ?? ''}
      last={points.length > 1 ? (points.at(-1)?.label ?? '') : ''}
    >
      <polygon class="band" points={band.join(' ')} />
      <polyline class="line" points={path(points.map(({ value }) => value)).join(' ')} />
      <g>
        {points.map(({ label, value, spread }, index) => (
          <circle key={label} cx={x(index)} cy={y(value)} r="3" class="point">
            <title>{`${label}: ${compact(value)} ± ${compact(spread)}`}</title>
          </circle>
        ))}
      </g>
    </Frame>
  );
}
