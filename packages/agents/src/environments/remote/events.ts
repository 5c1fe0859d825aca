/** A server-sent event. */
export type ServerEvent = { readonly event: string; readonly data: string };

/** Reads a stream of server-sent events that has ended. An event that is not complete is left out. */
export function readEvents(text: string): ServerEvent[] {
  const events: ServerEvent[] = [];
  let event = 'message';
  let data: string[] = [];
  for (const line of text.split(/\r\n|\r|\n/)) {
    if (line === '') {
      if (data.length > 0) events.push({ event, data: data.join('\n') });
      event = 'message';
      data = [];
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') event = value;
    if (field === 'data') data.push(value);
  }
  return events;
}
