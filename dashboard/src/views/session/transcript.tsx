import type { ChatMessage, Content } from '@floe-rl/core/schema';
import { useSignal } from '@preact/signals';
import type { JSX } from 'preact';
import { Badge } from '../../components/parts.tsx';
import { compact, duration, visible } from '../../format.ts';
import { markedParts } from '../../marks.ts';
import { linkTo, route, setParams } from '../../route.ts';
import type { SessionCall } from './calls.ts';
import type { LoadedSession } from './load.ts';

/** Lines and characters of a text that are shown before the reader asks for the rest. */
const SHOWN_LINES = 24;
const SHOWN_CHARS = 4_000;

/** The parts of the conversation that a reader can hide. */
const KINDS = ['system', 'thinking', 'tools'] as const;

/** The conversation, call by call: the new messages of each request, and the reply. */
export function Transcript({ session: { view, calls, trajectory } }: { session: LoadedSession }): JSX.Element {
  const { params } = route.value;
  const hidden = new Set((params.get('hide') ?? '').split(',').filter((kind) => kind !== ''));
  const wanted = (params.get('find') ?? '').toLowerCase();
  const threads = [...new Set(calls.map(({ record }) => record.thread))];
  const thread = params.get('thread');
  const shown = calls.filter(
    (call) => (thread === null || call.record.thread === thread) && (wanted === '' || textOf(call).includes(wanted)),
  );
  const images = trajectory?.images ?? {};
  return (
    <>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <label>
          Find{' '}
          <input
            type="search"
            data-key="/"
            value={params.get('find') ?? ''}
            onInput={(event) => setParams({ find: event.currentTarget.value })}
          />
        </label>
        {threads.length > 1 && (
          <label>
            Thread{' '}
            <select value={thread ?? ''} onChange={(event) => setParams({ thread: event.currentTarget.value })}>
              <option value="">all</option>
              {threads.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        )}
        {KINDS.map((kind) => (
          <label key={kind}>
            <input
              type="checkbox"
              checked={!hidden.has(kind)}
              onChange={() => {
                const changed = new Set(hidden);
                if (!changed.delete(kind)) changed.add(kind);
                setParams({ hide: [...changed].join(',') });
              }}
            />{' '}
            {kind}
          </label>
        ))}
        <span class="quiet">
          {shown.length} of {calls.length} calls
        </span>
      </form>
      <ol class="calls">
        {shown.map((call) => (
          <li key={call.record.completion_id} id={call.record.completion_id}>
            <CallHead call={call} sessionId={view.session_id} />
            {call.messages.slice(call.known).map((message, index) => (
              <Message key={`${call.known + index}`} message={message} hidden={hidden} images={images} />
            ))}
            <Message message={call.record.message} hidden={hidden} images={images} isReply />
          </li>
        ))}
      </ol>
    </>
  );
}

function CallHead({ call: { record, training }, sessionId }: { call: SessionCall; sessionId: string }): JSX.Element {
  const { usage, timings, call_kind: kind, thread } = record;
  return (
    <div class="call-head">
      <a href={linkTo(['sessions', sessionId, 'tokens'], { call: String(record.index) })}>call {record.index}</a>
      <span>{thread}</span>
      {kind !== 'main' && <Badge tone="plain">{kind}</Badge>}
      <span>
        {compact(usage.prompt_tokens)} → {compact(usage.completion_tokens)} tokens
      </span>
      <span>{duration(timings.total_ms)}</span>
      {record.finish_reason !== 'stop' && record.finish_reason !== 'tool_calls' && (
        <Badge tone="warn">{record.finish_reason}</Badge>
      )}
      {record.link === 'rerendered' && <Badge tone="warn">rerendered: {record.drift ?? 'unknown'}</Badge>}
      {training.trace === null ? (
        <Badge tone="warn">not trained: {training.why}</Badge>
      ) : (
        <Badge tone="good">trained</Badge>
      )}
    </div>
  );
}

type Images = Readonly<Record<string, string>>;

function Message(props: {
  readonly message: ChatMessage;
  readonly hidden: ReadonlySet<string>;
  readonly images: Images;
  readonly isReply?: boolean;
}): JSX.Element | null {
  const { message, hidden, images, isReply = false } = props;
  if (hidden.has('system') && message.role === 'system') return null;
  if (hidden.has('tools') && message.role === 'tool') return null;
  const calls = message.role === 'assistant' ? (message.tool_calls ?? []) : [];
  const thinking = message.role === 'assistant' ? (message.reasoning_content ?? '') : '';
  return (
    <section class={`message ${message.role} ${isReply ? 'reply' : ''}`} aria-label={message.role}>
      <div class="role">{message.role}</div>
      <div class="said">
        {thinking !== '' && !hidden.has('thinking') && (
          <details class="thinking" open>
            <summary>thinking</summary>
            <Text text={thinking} />
          </details>
        )}
        <Said content={message.content} images={images} />
        {hidden.has('tools') && calls.length > 0 && <p class="quiet">[{calls.length} tool calls are hidden]</p>}
        {!hidden.has('tools') &&
          calls.map(({ id, function: { name, arguments: args } }) => (
            <div class="tool-call" key={id}>
              <strong>{visible(name)}</strong>
              <Text text={indented(args)} />
            </div>
          ))}
      </div>
    </section>
  );
}

function Said({ content, images }: { content: Content | null; images: Images }): JSX.Element | null {
  if (content === null || content === '') return null;
  if (typeof content === 'string') return <Text text={content} />;
  return (
    <>
      {content.map((part, index) =>
        part.type === 'text' ? (
          <Text key={`${index}`} text={part.text} />
        ) : (
          <Picture key={`${index}`} url={images[part.image_url.url] ?? part.image_url.url} />
        ),
      )}
    </>
  );
}

/**
 * Shows an image that is in the session itself. For images elsewhere, shows only the URL: loading an image would reveal the reader to its
 * server.
 */
function Picture({ url }: { url: string }): JSX.Element {
  if (/^data:image\/(png|jpeg|gif|webp);base64,/.test(url))
    return <img class="picture" src={url} alt="seen by the agent" />;
  return <p class="quiet">[image at {visible(url.slice(0, 200))}]</p>;
}

/** A text of an agent. Only its beginning is shown at first. */
export function Text({ text }: { text: string }): JSX.Element {
  const isWhole = useSignal(false);
  const shown = isWhole.value ? text : beginning(text);
  return (
    <>
      <pre>
        {markedParts(visible(shown), route.value.params.get('mark') ?? '').map(({ text: part, isMarked }, index) =>
          isMarked ? <mark key={`${index}`}>{part}</mark> : part,
        )}
      </pre>
      {shown.length < text.length && (
        <button type="button" class="link" onClick={() => (isWhole.value = true)}>
          Show all {compact(text.length)} characters
        </button>
      )}
    </>
  );
}

function beginning(text: string): string {
  let end = 0;
  for (let line = 0; line < SHOWN_LINES; line++) {
    const next = text.indexOf('\n', end);
    if (next < 0) return text.slice(0, SHOWN_CHARS);
    end = next + 1;
  }
  return text.slice(0, Math.min(end, SHOWN_CHARS));
}

/** Returns JSON with indentation, and any other text as it is. */
function indented(args: string): string {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}

function textOf({ messages, known, record }: SessionCall): string {
  return JSON.stringify([...messages.slice(known), record.message]).toLowerCase();
}
