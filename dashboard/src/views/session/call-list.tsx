import { useSignal } from '@preact/signals';
import type { JSX } from 'preact';
import { Badge } from '../../components/parts.tsx';
import { Table } from '../../components/table.tsx';
import { compact, duration, timeText, visible } from '../../format.ts';
import { route, setParams } from '../../route.ts';
import type { SessionCall } from './calls.ts';
import type { LoadedSession } from './load.ts';
import { Text } from './transcript.tsx';

/** The calls as a table, and one of them with its whole request. */
export function Calls({ session: { calls } }: { session: LoadedSession }): JSX.Element {
  const chosen = calls.find(({ record }) => String(record.index) === route.value.params.get('call'));
  return (
    <>
      <Table
        heads={[
          'Call',
          'At',
          'Thread',
          'Kind',
          'Dialect',
          'Engine',
          'Prompt',
          'Cached',
          'Reply',
          'End',
          'Context',
          'Engine time',
          'Added',
        ]}
      >
        {calls.map(({ record }) => (
          <tr key={record.completion_id} aria-selected={record === chosen?.record}>
            <td>
              <button type="button" class="link" onClick={() => setParams({ call: String(record.index) })}>
                {record.index}
              </button>
            </td>
            <td>{timeText(record.timestamp)}</td>
            <td>{record.thread}</td>
            <td>{record.call_kind}</td>
            <td>{record.dialect}</td>
            <td>{record.engine_id}</td>
            <td>{compact(record.usage.prompt_tokens)}</td>
            <td>{record.usage.cached_tokens === null ? '–' : compact(record.usage.cached_tokens)}</td>
            <td>{compact(record.usage.completion_tokens)}</td>
            <td>{record.finish_reason}</td>
            <td>
              {record.link}
              {record.drift !== null && <Badge tone="warn">{record.drift}</Badge>}
            </td>
            <td>{duration(record.timings.engine_ms)}</td>
            <td>{duration(record.timings.total_ms - record.timings.engine_ms)}</td>
          </tr>
        ))}
      </Table>
      {chosen !== undefined && <Detail call={chosen} />}
    </>
  );
}

function Detail({ call }: { call: SessionCall }): JSX.Element {
  const { record, messages, tools } = call;
  const wasCopied = useSignal(false);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(curlOf(call));
    wasCopied.value = true;
  };
  return (
    <section aria-label={`call ${record.index}`}>
      <h3>Call {record.index}</h3>
      <p>
        <button type="button" onClick={copy}>
          {wasCopied.value ? 'Copied' : 'Copy as curl'}
        </button>{' '}
        {record.request.adjusted.length > 0 && (
          <>
            The proxy changed or dropped: <code>{record.request.adjusted.map(visible).join(', ')}</code>
          </>
        )}
      </p>
      <h4>Sampling</h4>
      <Text text={JSON.stringify(record.request.sampling, null, 2)} />
      <h4>Request ({messages.length} messages)</h4>
      <Text text={JSON.stringify(messages, null, 2)} />
      <h4>Tools ({tools.length})</h4>
      <Text text={JSON.stringify(tools, null, 2)} />
      <h4>Reply</h4>
      <Text text={JSON.stringify(record.message, null, 2)} />
    </section>
  );
}

/** Returns a command that sends the request to an engine once more. */
function curlOf({ record, messages, tools }: SessionCall): string {
  const body = { model: record.model, messages, ...(tools.length === 0 ? {} : { tools }), ...record.request.sampling };
  const quoted = JSON.stringify(body, null, 1).replaceAll("'", `'\\''`);
  return `curl "$ENGINE/v1/chat/completions" -H 'content-type: application/json' -d '${quoted}'`;
}
