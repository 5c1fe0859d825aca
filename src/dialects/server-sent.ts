/** Content type of server-sent events, as every dialect's clients expect it. */
export const EVENT_STREAM = 'text/event-stream; charset=utf-8';

/** One event without a name. */
export function dataEvent(data: object): string {
  return `data: ${JSON.stringify(data)}\n\n`;
}

/** One event whose name is also the `type` of its data. */
export function typedEvent(type: string, data: object): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`;
}
