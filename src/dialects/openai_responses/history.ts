import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type { ContentPart } from '../../schema/index.ts';
import { type Conversation, contentOf } from '../conversation.ts';
import { customArguments } from '../custom-tool.ts';
import { AssistantTurns } from './assistant-turns.ts';
import { completionOfItem, itemId } from './identifiers.ts';
import type { ItemReferences } from './item-references.ts';
import {
  additionalToolsSchema,
  agentMessageSchema,
  compactionSchema,
  customCallSchema,
  type ForeignPart,
  type ForeignReasoning,
  functionCallSchema,
  messageSchema,
  outputSchema,
  partSchema,
  reasoningSchema,
} from './schema.ts';
import { unsealText } from './sealed-text.ts';
import { canonicalName, type ToolTable } from './tools.ts';
import { quoted, violation, WHAT } from './violation.ts';

/** What the policy is asked when the client hands its history over to be compacted. */
export const COMPACTION_PROMPT = [
  'The conversation above is about to be removed from your context. Write the hand-over that replaces it: whoever continues',
  'sees nothing but what you write now. State the task as the user set it, with every requirement and constraint; what has',
  'been done and decided, and why; the state of every file that was touched; commands, names, paths and values that are',
  'still needed, spelled out exactly; what was tried and failed; and what remains to be done, in order. Answer with the',
  'hand-over alone and call no tools.',
].join(' ');

const SUMMARY_HEAD = 'Summary of the conversation so far:';

/** Calls and results of tools that the vendor would have run. */
const HOSTED_ITEMS: ReadonlySet<string> = new Set([
  ...['web_search_call', 'file_search_call', 'code_interpreter_call', 'image_generation_call'],
  ...['computer_call', 'computer_call_output', 'local_shell_call', 'local_shell_call_output'],
  ...['shell_call', 'shell_call_output', 'apply_patch_call', 'apply_patch_call_output'],
  ...['mcp_list_tools', 'mcp_approval_request', 'mcp_approval_response', 'mcp_call'],
  ...['tool_search_call', 'tool_search_output', 'program', 'program_output'],
]);

const partsSchema = z.array(partSchema);

/** Input items, put into a conversation one after the other. */
export class History {
  /** The input ended with a `compaction_trigger`. */
  compaction = false;
  private readonly conversation: Conversation;
  private readonly tools: ToolTable;
  private readonly references: ItemReferences;
  private readonly turns: AssistantTurns;

  constructor(conversation: Conversation, tools: ToolTable, references: ItemReferences) {
    this.conversation = conversation;
    this.tools = tools;
    this.references = references;
    this.turns = new AssistantTurns(conversation);
  }

  /** Throws `schema_violation` or `unsupported`, naming the field. */
  add(item: unknown, at: string): void {
    if (this.compaction) throw new FloeError('unsupported', `${at}: nothing may follow a compaction_trigger`);
    const type = typeOf(item, at);
    switch (type) {
      case 'message':
        this.message(item, at);
        return;
      case 'agent_message':
        this.turns.close();
        this.conversation.note('agent_message sent as user message');
        this.conversation.user(
          contentOf(this.parts(parseAs(agentMessageSchema, item, WHAT, at).content, `${at}.content`)),
        );
        return;
      case 'reasoning':
        this.reasoning(parseAs(reasoningSchema, item, WHAT, at));
        return;
      case 'function_call': {
        const call = parseAs(functionCallSchema, item, WHAT, at);
        this.turns.call(call.id, call.call_id, canonicalName(call.namespace, call.name), call.arguments);
        return;
      }
      case 'custom_tool_call': {
        const call = parseAs(customCallSchema, item, WHAT, at);
        this.turns.call(call.id, call.call_id, canonicalName(call.namespace, call.name), customArguments(call.input));
        return;
      }
      case 'function_call_output':
      case 'custom_tool_call_output': {
        const { call_id, output } = parseAs(outputSchema, item, WHAT, at);
        this.turns.result(call_id, this.parts(output, `${at}.output`));
        return;
      }
      default:
        this.rare(type, item, at);
    }
  }

  close(): void {
    this.turns.close();
  }

  private rare(type: string, item: unknown, at: string): void {
    switch (type) {
      case 'additional_tools':
        for (const [index, tool] of parseAs(additionalToolsSchema, item, WHAT, at).tools.entries()) {
          this.tools.add(tool, `${at}.tools.${index}`, true);
        }
        return;
      case 'compaction':
      case 'compaction_summary':
      case 'context_compaction': {
        const summary = unsealText('summary', parseAs(compactionSchema, item, WHAT, at).encrypted_content);
        if (summary === null)
          throw new FloeError('unsupported', `${at}.encrypted_content: not a summary of this proxy`);
        this.summary(summary.text);
        return;
      }
      case 'compaction_trigger':
        this.turns.close();
        this.conversation.note('compaction_trigger sent as a request for a summary');
        this.conversation.user(COMPACTION_PROMPT);
        this.compaction = true;
        return;
      case 'item_reference':
        this.reference(item, at);
        return;
      default:
        if (!HOSTED_ITEMS.has(type))
          throw new FloeError('unsupported', `${at}.type: unknown item type ${quoted(type)}`);
        this.conversation.note(`hosted item ${type} dropped`);
    }
  }

  /** As if the item had been sent itself. */
  private reference(reference: unknown, at: string): void {
    const item = this.references.recall(reference, at);
    switch (item.kind) {
      case 'reasoning':
        this.turns.reasoning(item.id, item.text);
        return;
      case 'text':
        this.turns.text(item.id, item.text);
        return;
      case 'call':
        this.turns.call(item.id, item.call.id, item.call.function.name, item.call.function.arguments);
        return;
      case 'summary':
        this.summary(item.text);
        return;
    }
  }

  private summary(text: string): void {
    this.turns.close();
    this.conversation.user(`${SUMMARY_HEAD}\n\n${text}`);
  }

  private message(item: unknown, at: string): void {
    const { role, content, id } = parseAs(messageSchema, item, WHAT, at);
    const parts = this.parts(content, `${at}.content`);
    switch (role) {
      case 'user':
        this.turns.close();
        this.conversation.user(contentOf(parts));
        return;
      case 'assistant':
        this.turns.text(id, this.texts(parts).join(''));
        return;
      case 'system':
      case 'developer': {
        this.turns.close();
        if (role === 'developer') this.conversation.note('developer message sent as system');
        this.conversation.system(this.texts(parts).join('\n'));
        return;
      }
    }
  }

  private reasoning({ id, content, summary, encrypted_content: sealed }: ForeignReasoning): void {
    const written = content?.length ? content : (summary ?? []);
    const text = written.map((part) => part.text).join('\n');
    const opened = sealed ? unsealText('thinking', sealed) : null;
    if (text === '' && sealed && opened === null) this.conversation.note('reasoning encrypted elsewhere dropped');
    // Clients that keep nothing on the server may drop the ids of items.
    const completionId = completionOfItem(id) ?? opened?.completionId ?? null;
    this.turns.reasoning(completionId === null ? id : itemId('rs', completionId), text || (opened?.text ?? ''));
  }

  private parts(content: unknown, at: string): ContentPart[] {
    if (content === null || content === undefined) return [];
    if (typeof content === 'string') return [{ type: 'text', text: content }];
    return parseAs(partsSchema, content, WHAT, at).flatMap((part) => this.part(part) ?? []);
  }

  private part(part: ForeignPart): ContentPart | null {
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

/** Checked by hand, since every item of a history passes here. Without a type an item with a role is a message, else a reference. */
function typeOf(item: unknown, at: string): string {
  if (typeof item !== 'object' || item === null || Array.isArray(item)) throw violation(at, 'expected an object');
  if ('type' in item && item.type !== undefined && item.type !== null) {
    if (typeof item.type !== 'string') throw violation(`${at}.type`, 'expected a string');
    return item.type;
  }
  return 'role' in item ? 'message' : 'item_reference';
}
