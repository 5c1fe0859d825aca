import {
  type ChatMessage,
  type CompletionRecord,
  contentText,
  type SessionView,
  type Trajectory,
} from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { formatTable, paint, printJson, printLine, visible } from './print.ts';

/** Maximum number of characters of a text that `floe trace` prints unless `--full` is given. */
const SHOWN_CHARS = 240;

type Options = ConnectionOptions & { full?: boolean };

export function registerTrace(program: Command): void {
  withConnectionOptions(
    program
      .command('trace <session>')
      .description('show a finished session with its turns, its tokens, and what is trained')
      .option('--full', 'print texts in full length'),
  ).action(async (id: string, options: Options) => {
    await withClient(options, async (client) => {
      const session = await client.session(id);
      const trajectory = await client.trajectory(id);
      const completions = JSON.parse((await client.completions(id)).toString('utf8')) as CompletionRecord[];
      if (options.json) return printJson({ session, trajectory, completions });
      const shorten = (text: string): string =>
        visible(options.full === true || text.length <= SHOWN_CHARS ? text : `${text.slice(0, SHOWN_CHARS)}…`);
      printHead(session);
      for (const completion of completions) printTurn(completion, shorten);
      printTraces(trajectory);
    });
  });
}

function printHead(session: SessionView): void {
  const { summary } = session;
  printLine(
    `${paint('bold', session.session_id)}  task ${session.task_id}, sample ${session.sample_index}, attempt ${session.attempt}`,
  );
  if (summary === null) {
    printLine(`status ${session.status}`);
    return;
  }
  const reward = summary.reward === null ? 'none' : String(summary.reward);
  printLine(
    `outcome ${outcomeColour(summary.outcome)}, reward ${paint('bold', reward)}, ${(summary.timing.total_ms / 1000).toFixed(2)} s`,
  );
  const components = Object.entries(summary.reward_components);
  if (components.length > 0)
    printLine(
      `reward components: ${components.map(([name, value]) => `${visible(name)} ${value ?? 'none'}`).join(', ')}`,
    );
  const details = Object.entries(summary.reward_details);
  if (details.length > 0)
    printLine(
      `reward details: ${details.map(([name, value]) => `${visible(name)} ${visible(JSON.stringify(value))}`).join(', ')}`,
    );
  if (summary.error !== null) printLine(paint('red', `${summary.error.code}: ${visible(summary.error.message)}`));
}

function outcomeColour(outcome: string): string {
  return paint(outcome === 'completed' ? 'green' : 'yellow', outcome);
}

function printTurn(completion: CompletionRecord, shorten: (text: string) => string): void {
  const { message, prompt } = completion;
  const kind = completion.call_kind === 'main' ? '' : ` ${completion.call_kind}`;
  const thread = completion.thread === 'main' ? '' : ` thread ${completion.thread}`;
  const marks = [
    completion.abandoned && 'abandoned',
    completion.auxiliary && 'auxiliary',
    completion.undelivered && 'undelivered',
  ];
  const flags = marks.filter(Boolean).join(', ');
  printLine();
  printLine(
    `${paint('bold', `turn ${completion.index}`)}${kind}${thread}  ${paint('cyan', completion.link)}  ` +
      `${completion.usage.prompt_tokens} prompt (${prompt.ids.length} new), ${completion.response_ids.length} sampled, ` +
      `${completion.finish_reason}${flags === '' ? '' : paint('yellow', `  ${flags}`)}`,
  );
  for (const requestMessage of completion.request.messages) printMessage(requestMessage, shorten);
  const thought = message.reasoning_content?.trim() ?? '';
  const answer = message.content?.trim() ?? '';
  if (thought !== '') printLine(indent(paint('dim', `think  ${shorten(thought)}`)));
  if (answer !== '') printLine(indent(paint('green', `say    ${shorten(answer)}`)));
  for (const call of message.tool_calls ?? []) {
    printLine(indent(paint('green', `call   ${visible(call.function.name)} ${shorten(call.function.arguments)}`)));
  }
}

function printMessage(message: ChatMessage, shorten: (text: string) => string): void {
  // Skips assistant messages, because they were already printed as the turns in which they were sampled.
  if (message.role === 'assistant') return;
  printLine(indent(`${message.role.padEnd(6)} ${shorten(contentText(message.content, { image: '[image]' }))}`));
}

function indent(text: string): string {
  return text.replaceAll('\n', '\n         ').replace(/^/, '  ');
}

function printTraces(trajectory: Trajectory): void {
  printLine();
  printLine(
    formatTable(
      ['trace', 'prompt', 'response', 'trained', 'completions', 'reward'],
      trajectory.traces.map((trace) => [
        trace.trace_id,
        trace.prompt_ids.length,
        trace.response_ids.length,
        trace.loss_mask.reduce((sum, bit) => sum + bit, 0),
        trace.completion_ids.length,
        trace.reward,
      ]),
    ),
  );
  const { tokens, exact_context_share: share } = trajectory.audit;
  const excluded = Object.entries(tokens.excluded).map(([reason, count]) => `${count} ${reason}`);
  printLine(
    `sampled ${tokens.sampled} = trained ${tokens.trained} + excluded ${excluded.length === 0 ? 0 : excluded.join(' + ')}; ` +
      `in exact context: ${share === null ? 'nothing trained' : `${(share * 100).toFixed(1)} %`}`,
  );
}
