import type { ComponentChildren, JSX } from 'preact';
import type { ApiError } from '../api.ts';
import type { Query } from '../query.ts';

/** A word in the colour of its tone: `good`, `bad`, `warn` or `plain`. */
export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }): JSX.Element {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export type Tone = 'good' | 'bad' | 'warn' | 'plain';

/** The colour of each outcome. Truncated and untrainable sessions are warnings: they are expected, but cost samples. */
export function toneOf(outcome: string): Tone {
  if (outcome === 'completed' || outcome === 'COMPLETED') return 'good';
  if (outcome.startsWith('truncated') || outcome === 'agent_timeout' || outcome === 'cancelled') return 'warn';
  if (outcome.endsWith('_error') || outcome === 'ERROR' || outcome === 'TIMEOUT') return 'bad';
  return 'plain';
}

/** A number with a label. */
export function Figure({
  label,
  value,
  note,
}: {
  label: string;
  value: ComponentChildren;
  note?: string;
}): JSX.Element {
  return (
    <div class="figure">
      <div class="value">{value}</div>
      <div class="label">{label}</div>
      {note !== undefined && <div class="note">{note}</div>}
    </div>
  );
}

/** Shows data after it is loaded, or the error instead. When loading newer data fails, shows the old data with a note. */
export function Loaded<T>({ of, children }: { of: Query<T>; children: (data: T) => ComponentChildren }): JSX.Element {
  const { data, error } = of;
  if (data === null) return error === null ? <p class="quiet">Loading…</p> : <Failure error={error} />;
  return (
    <>
      {error !== null && <Failure error={error} isOld />}
      {children(data)}
    </>
  );
}

/** An error in words, with advice for the reader. */
function Failure({ error, isOld = false }: { error: ApiError; isOld?: boolean }): JSX.Element {
  const remedy = REMEDIES[error.code];
  return (
    <p class="failure" role="alert">
      {isOld ? 'What is below may be out of date: ' : ''}
      {error.message}
      {remedy === undefined ? '' : ` – ${remedy}`} <code>{error.code}</code>
    </p>
  );
}

const REMEDIES: Readonly<Record<string, string>> = {
  unreachable: 'the page tries again by itself',
  unauthorized: 'sign in with a control token',
  forbidden: 'sign in with a token of another role',
  not_found: 'it may have been removed after its retention time',
};

/** A bar of parts in proportion to their numbers. */
export function StackedBar({ parts }: { parts: readonly { label: string; count: number; tone: Tone }[] }): JSX.Element {
  const total = parts.reduce((sum, { count }) => sum + count, 0);
  const text = parts.map(({ label, count }) => `${label} ${count}`).join(', ');
  return (
    <div class="stacked" role="img" aria-label={total === 0 ? 'nothing yet' : text} title={text}>
      {parts
        .filter(({ count }) => count > 0)
        .map(({ label, count, tone }) => (
          <span key={label} class={tone} style={{ flexGrow: count }} />
        ))}
    </div>
  );
}
