import type { JSX } from 'preact';
import { postJson } from '../../api.ts';
import { Badge } from '../../components/parts.tsx';
import { compact, visible } from '../../format.ts';
import { useQuery } from '../../query.ts';
import { route, setParams } from '../../route.ts';
import type { SessionCall } from './calls.ts';
import type { LoadedSession } from './load.ts';

/** Tokens that are shown at once; a longer reply has pages. */
const PAGE = 2_000;
/** Log-probability at which a token has the full colour for unlikely tokens. */
const UNLIKELY = -5;

/** Each token of one call: its id, its log-probability as a colour, whether it is trained, and the policy version that sampled it. */
export function Tokens({ session: { calls } }: { session: LoadedSession }): JSX.Element {
  const { params } = route.value;
  const index = Number(params.get('call') ?? calls[0]?.record.index ?? 0);
  const at = Math.max(
    0,
    calls.findIndex(({ record }) => record.index === index),
  );
  const call = calls[at] as SessionCall;
  const step = (by: number): void => {
    const next = calls[at + by];
    if (next !== undefined) setParams({ call: String(next.record.index), page: null });
  };
  return (
    <>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <button type="button" data-key="[" onClick={() => step(-1)} disabled={at === 0}>
          Previous call
        </button>
        <label>
          Call{' '}
          <select
            value={String(call.record.index)}
            onChange={(event) => setParams({ call: event.currentTarget.value, page: null })}
          >
            {calls.map(({ record }) => (
              <option key={record.index} value={String(record.index)}>
                {record.index} {record.thread} ({record.response_ids.length} tokens)
              </option>
            ))}
          </select>
        </label>
        <button type="button" data-key="]" onClick={() => step(1)} disabled={at === calls.length - 1}>
          Next call
        </button>
      </form>
      <Facts call={call} />
      <Reply call={call} page={Number(params.get('page') ?? 0)} />
    </>
  );
}

function Facts({ call: { record, promptLength, keptIds, training } }: { call: SessionCall }): JSX.Element {
  const { capture, version_spans: spans, link, drift } = record;
  const versions = spans.map(({ version, start, end }) => `${version ?? 'unknown'} (${start} to ${end - 1})`);
  return (
    <dl class="facts">
      <dt>prompt</dt>
      <dd>
        {compact(promptLength)} ids, {compact(keptIds)} of them as recorded before; {capture.mode} mode
        {capture.rendered_because !== null && `, rendered because: ${capture.rendered_because}`}
      </dd>
      <dt>context</dt>
      <dd>
        {link}
        {drift !== null && <Badge tone="warn">{drift}</Badge>}
      </dd>
      <dt>policy version</dt>
      <dd>{versions.length === 0 ? 'unknown' : versions.join(', ')}</dd>
      <dt>log-probabilities</dt>
      <dd>{capture.logprobs_mode ?? 'none'}</dd>
      <dt>training</dt>
      <dd>
        {training.trace === null ? (
          <Badge tone="warn">not trained: {training.why}</Badge>
        ) : (
          `trace ${training.trace}, reward ${training.reward ?? '–'}, ${sum(training.mask)} of ${training.mask.length} tokens`
        )}
      </dd>
    </dl>
  );
}

function Reply({ call: { record, training }, page }: { call: SessionCall; page: number }): JSX.Element {
  const { response_ids: ids, response_logprobs: logprobs, version_spans: spans } = record;
  const model = record.model;
  const pages = Math.max(1, Math.ceil(ids.length / PAGE));
  const from = Math.min(page, pages - 1) * PAGE;
  const shownIds = ids.slice(from, from + PAGE);
  const texts = useQuery(`texts ${record.completion_id} ${from}`, async (aborted) =>
    postJson<{ texts: readonly string[] | null }>('token-texts', { model, ids: shownIds }, aborted),
  ).data?.texts;
  return (
    <>
      <h3>Reply</h3>
      <p class="quiet">
        {texts == null ? `Ids of tokens, since the server has no tokenizer of ${model}` : 'Texts of tokens'}; the
        redder, the less probable. Struck through: not trained. Point at one for its values.
      </p>
      {pages > 1 && (
        <p>
          {Array.from({ length: pages }, (_, number) => (
            <button
              type="button"
              class="link"
              key={`${number}`}
              aria-current={number === page ? 'page' : undefined}
              onClick={() => setParams({ page: String(number) })}
            >
              {number * PAGE}–{Math.min(ids.length, (number + 1) * PAGE) - 1}
            </button>
          ))}
        </p>
      )}
      <ol class="tokens" start={from}>
        {shownIds.map((id, offset) => {
          const position = from + offset;
          const logprob = logprobs[position];
          const version = spans.find(({ start, end }) => position >= start && position < end)?.version ?? 'unknown';
          const isTrained = training.trace !== null && training.mask[position] === 1;
          const title = `position ${position}, id ${id}, log-probability ${logprob?.toFixed(4) ?? 'none'}, version ${version}, ${isTrained ? 'trained' : 'not trained'}`;
          return (
            <li
              key={position}
              title={title}
              class={isTrained ? '' : 'untrained'}
              style={{ '--unlikely': `${Math.round(100 * unlikely(logprob))}%` }}
            >
              {texts == null ? id : shown(texts[offset] ?? '')}
            </li>
          );
        })}
      </ol>
    </>
  );
}

/** Returns a text in which spaces and line breaks can be seen. A token without a character of its own becomes a dot. */
function shown(text: string): string {
  return text === '' ? '·' : visible(text).replaceAll(' ', '␣').replaceAll('\n', '⏎').replaceAll('\t', '⇥');
}

/** Returns how unlikely a token is, from 0 for a certain token to 1. */
function unlikely(logprob: number | undefined): number {
  return logprob === undefined ? 0 : Math.min(1, Math.max(0, logprob / UNLIKELY));
}

function sum(values: readonly number[]): number {
  return values.reduce((all, value) => all + value, 0);
}
