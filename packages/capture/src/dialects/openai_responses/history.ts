import { FloeError, isRecord, parseAs } from '@floe-rl/core';
import type { AssistantMessage, ContentPart, ToolCall } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type Conversation, contentOf } from '../conversation.ts';
import { customArguments } from '../custom-tool.ts';
import { unsealText } from '../opaque-fields.ts';
import { completionOfItem, itemId } from './identifiers.ts';
import type { ItemReferences } from './item-references.ts';
import {
  additionalToolsSchema,
  agentMessageSchema,
  compactionSchema,
  customCallSchema,
  functionCallSchema,
  messageSchema,
  outputSchema,
  partSchema,
  quotedStart,
  REQUEST_NAME,
  reasoningSchema,
  violation,
  type WirePart,
  type WireReasoning,
} from './schema.ts';
import { canonicalName, type ToolTable } from './tools.ts';

/** User message that asks the model for a summary when the client requests a compaction of the conversation. */
export const COMPACTION_PROMPT = [
  // words: quoted
  'The conversation above is about to be removed from your context. Write the hand-over that replaces it: whoever continues',
  'sees nothing but what you write now. State the task as the user set it, with every requirement and constraint; what has',
  'been done and decided, and why; the state of every file that was touched; commands, names, paths and values that are',
  'still needed, spelled out exactly; what was tried and failed; and what remains to be done, in order. Answer with the',
  'hand-over alone and call no tools.',
].join(' ');

const SUMMARY_HEAD = 'Summary of the conversation so far:';

/** Types of the items for calls and results of tools that run on the vendor's servers. Such items are dropped. */
const HOSTED_ITEMS: ReadonlySet<string> = new Set([
  ...['web_search_call', 'file_search_call', 'code_interpreter_call', 'image_generation_call'],
  ...['computer_call', 'computer_call_output', 'local_shell_call', 'local_shell_call_output'],
  ...['shell_call', 'shell_call_output', 'apply_patch_call', 'apply_patch_call_output'],
  ...['mcp_list_tools', 'mcp_approval_request', 'mcp_approval_response', 'mcp_call'],
  ...['tool_search_call', 'tool_search_output', 'program', 'program_output'],
]);

const partsSchema = z.array(partSchema);

/** Translates the input items of a request, in order, into the messages of a conversation. */
export class History {
  /** Whether the input ended with a `compaction_trigger` item, which requests a summary of the conversation. */
  isCompaction = false;
  private readonly conversation: Conversation;
  private readonly tools: ToolTable;
  private readonly references: ItemReferences;
  private readonly assistant: AssistantTurns;

  constructor(conversation: Conversation, tools: ToolTable, references: ItemReferences) {
    this.conversation = conversation;
    this.tools = tools;
    this.references = references;
    this.assistant = new AssistantTurns(conversation);
  }

  /**
   * Adds one input item to the conversation; `at` is its path in the request. Throws `schema_violation` or `unsupported` with the path of
   * the field.
   */
  add(item: unknown, at: string): void {
    if (this.isCompaction) throw new FloeError('unsupported', `${at}: nothing may follow a compaction_trigger`);
    const type = typeOf(item, at);
    switch (type) {
      case 'message':
        this.message(item, at);
        return;
      case 'agent_message':
        this.assistant.close();
        this.conversation.note('agent_message sent as user message');
        this.conversation.user(
          contentOf(this.parts(parseAs(agentMessageSchema, item, REQUEST_NAME, at).content, `${at}.content`)),
        );
        return;
      case 'reasoning':
        this.reasoning(parseAs(reasoningSchema, item, REQUEST_NAME, at));
        return;
      case 'function_call': {
        const call = parseAs(functionCallSchema, item, REQUEST_NAME, at);
        this.assistant.call(call.id, call.call_id, canonicalName(call.namespace, call.name), call.arguments);
        return;
      }
      case 'custom_tool_call': {
        const call = parseAs(customCallSchema, item, REQUEST_NAME, at);
        this.assistant.call(
          call.id,
          call.call_id,
          canonicalName(call.namespace, call.name),
          customArguments(call.input),
        );
        return;
      }
      case 'function_call_output':
      case 'custom_tool_call_output': {
        const { call_id, output } = parseAs(outputSchema, item, REQUEST_NAME, at);
        this.assistant.result(call_id, this.parts(output, `${at}.output`));
        return;
      }
      default:
        this.addRare(type, item, at);
    }
  }

  /** Ends the last assistant turn. Callers must call it after the last input item. */
  close(): void {
    this.assistant.close();
  }

  /** Adds an input item of a type that most histories do not contain. */
  private addRare(type: string, item: unknown, at: string): void {
    switch (type) {
      case 'additional_tools':
        for (const [index, tool] of parseAs(additionalToolsSchema, item, REQUEST_NAME, at).tools.entries()) {
          this.tools.add(tool, `${at}.tools.${index}`, true);
        }
        return;
      case 'compaction':
      case 'compaction_summary':
      case 'context_compaction': {
        const summary = unsealText('summary', parseAs(compactionSchema, item, REQUEST_NAME, at).encrypted_content);
        if (summary === null)
          throw new FloeError('unsupported', `${at}.encrypted_content: not a summary that floe made`);
        this.summary(summary.text);
        return;
      }
      case 'compaction_trigger':
        this.assistant.close();
        this.conversation.note('compaction_trigger sent as a request for a summary');
        this.conversation.user(COMPACTION_PROMPT);
        this.isCompaction = true;
        return;
      case 'item_reference':
        this.reference(item, at);
        return;
      default:
        if (!HOSTED_ITEMS.has(type))
          throw new FloeError('unsupported', `${at}.type: unknown item type ${quotedStart(type)}`);
        this.conversation.note(`hosted item ${type} dropped`);
    }
  }

  /** Adds the item that an `item_reference` names, as if the client had sent the item itself. */
  private reference(reference: unknown, at: string): void {
    const item = this.references.resolve(reference, at);
    switch (item.kind) {
      case 'reasoning':
        this.assistant.reasoning(item.id, item.text);
        return;
      case 'text':
        this.assistant.text(item.id, item.text);
        return;
      case 'call':
        this.assistant.call(item.id, item.call.id, item.call.function.name, item.call.function.arguments);
        return;
      case 'summary':
        this.summary(item.text);
        return;
    }
  }

  private summary(text: string): void {
    this.assistant.close();
    this.conversation.user(`${SUMMARY_HEAD}\n\n${text}`);
  }

  private message(item: unknown, at: string): void {
    const { role, content, id } = parseAs(messageSchema, item, REQUEST_NAME, at);
    const parts = this.parts(content, `${at}.content`);
    switch (role) {
      case 'user':
        this.assistant.close();
        this.conversation.user(contentOf(parts));
        return;
      case 'assistant':
        this.assistant.text(id, this.texts(parts).join(''));
        return;
      case 'system':
      case 'developer': {
        this.assistant.close();
        if (role === 'developer') this.conversation.note('developer message sent as system');
        this.conversation.system(this.texts(parts).join('\n'));
        return;
      }
    }
  }

  private reasoning({ id, content, summary, encrypted_content: sealed }: WireReasoning): void {
    const written = content?.length ? content : (summary ?? []);
    const text = written.map((part) => part.text).join('\n');
    const opened = sealed ? unsealText('thinking', sealed) : null;
    if (text === '' && sealed && opened === null) this.conversation.note('reasoning encrypted elsewhere dropped');
    // The completion id in `encrypted_content` is used as well, because clients that do not let the server store responses may drop item
    // ids.
    const completionId = completionOfItem(id) ?? opened?.completionId ?? null;
    this.assistant.reasoning(completionId === null ? id : itemId('rs', completionId), text || (opened?.text ?? ''));
  }

  private parts(content: unknown, at: string): ContentPart[] {
    if (content === null || content === undefined) return [];
    if (typeof content === 'string') return [{ type: 'text', text: content }];
    return parseAs(partsSchema, content, REQUEST_NAME, at).flatMap((part) => this.part(part) ?? []);
  }

  private part(part: WirePart): ContentPart | null {
    switch (part.type) {
      case 'refusal':
        return { type: 'text', text: part.refusal };
      case 'input_image':
        if (part.image_url) return { type: 'image_url', image_url: { url: part.image_url } };
        this.conversation.note('input_image without image_url dropped');
        return null;
      case 'input_file':
        this.conversation.note('input_file dropped');
        return null;
      default:
        return { type: 'text', text: part.text };
    }
  }

  private texts(parts: readonly ContentPart[]): string[] {
    const texts = parts.flatMap((part) => (part.type === 'text' ? [part.text] : []));
    if (texts.length < parts.length) this.conversation.note('image outside a user message dropped');
    return texts;
  }
}

/**
 * Returns the type of an input item. An item without a type is a message when it has a role, and an `item_reference` otherwise. No zod
 * schema is used, because this check runs for every item of a history on every request.
 */
function typeOf(item: unknown, at: string): string {
  if (!isRecord(item)) throw violation(at, 'expected an object');
  if ('type' in item && item.type !== undefined && item.type !== null) {
    if (typeof item.type !== 'string') throw violation(`${at}.type`, 'expected a string');
    return item.type;
  }
  return 'role' in item ? 'message' : 'item_reference';
}

/** Order of the kinds of items within a reply: thinking, then text, then tool calls. */
const ITEM_ORDER = { reasoning: 0, text: 1, call: 2 } as const;
type ItemPosition = keyof typeof ITEM_ORDER;

type AssistantTurn = {
  completionId: string | null;
  position: ItemPosition;
  readonly reasoning: string[];
  readonly texts: string[];
  readonly calls: ToolCall[];
  readonly results: { readonly callId: string; readonly parts: readonly ContentPart[] }[];
};

/**
 * Groups items into assistant messages, because one reply is several items in this dialect and one message in floe's internal form. An item
 * joins the assistant message before it when both belong to the same completion, whose id is part of the item ids that floe made. An item
 * without a completion id joins this message when it could be the next item of the same reply and no tool result is between them.
 */
class AssistantTurns {
  private readonly conversation: Conversation;
  private turn: AssistantTurn | null = null;

  constructor(conversation: Conversation) {
    this.conversation = conversation;
  }

  reasoning(id: string | null | undefined, text: string): void {
    this.turnFor('reasoning', id).reasoning.push(text);
  }

  text(id: string | null | undefined, text: string): void {
    this.turnFor('text', id).texts.push(text);
  }

  call(id: string | null | undefined, callId: string, name: string, args: string): void {
    this.turnFor('call', id).calls.push({ id: callId, type: 'function', function: { name, arguments: args } });
  }

  /**
   * Adds a tool result. While an assistant turn is open, the result is kept until the turn ends. Clients may send the result of one call
   * before the next call of the same turn.
   */
  result(callId: string, parts: readonly ContentPart[]): void {
    if (this.turn === null) this.conversation.tool(callId, parts);
    else this.turn.results.push({ callId, parts });
  }

  /** Ends the open assistant turn: adds its message to the conversation, then the tool results that arrived while the turn was open. */
  close(): void {
    const { turn } = this;
    if (turn === null) return;
    this.turn = null;
    const text = turn.texts.join('');
    const reasoning = turn.reasoning.filter((piece) => piece !== '').join('\n');
    const message: AssistantMessage = {
      role: 'assistant',
      content: text === '' && turn.calls.length > 0 ? null : text,
      ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
      ...(turn.calls.length === 0 ? {} : { tool_calls: turn.calls }),
    };
    this.conversation.assistant(message, turn.completionId);
    for (const { callId, parts } of turn.results) this.conversation.tool(callId, parts);
  }

  /** Returns the open assistant turn when the item continues it, otherwise starts a new turn. */
  private turnFor(position: ItemPosition, id: string | null | undefined): AssistantTurn {
    const completionId = completionOfItem(id);
    if (this.turn === null || !continuesTurn(this.turn, position, completionId)) {
      this.close();
      this.turn = { completionId, position, reasoning: [], texts: [], calls: [], results: [] };
    }
    this.turn.position = position;
    this.turn.completionId ??= completionId;
    return this.turn;
  }
}

function continuesTurn(turn: AssistantTurn, position: ItemPosition, completionId: string | null): boolean {
  if (turn.completionId !== null && completionId !== null) return turn.completionId === completionId;
  if (turn.results.length > 0) return false;
  return ITEM_ORDER[position] > ITEM_ORDER[turn.position] || (position === turn.position && position !== 'text');
}
