import type { JSX } from 'preact';
import { visible } from '../../format.ts';

const FORMATS: Readonly<Record<string, string>> = {
  floe: 'a result of floe',
  polar: 'a result of Polar',
  atif: 'an ATIF trajectory',
  inspect: 'a log of Inspect',
};

/** The file from which `floe view` read a session, and the data that the file lacks. */
export function Origin({ metadata }: { metadata: Readonly<Record<string, unknown>> }): JSX.Element | null {
  const { recording } = metadata;
  if (typeof recording !== 'object' || recording === null) return null;
  const { file, format, lacks } = recording as Readonly<Record<string, unknown>>;
  if (typeof file !== 'string' || typeof format !== 'string' || !Array.isArray(lacks)) return null;
  return (
    <p class="quiet">
      Read from {visible(file)}, {FORMATS[format] ?? visible(format)}.
      {lacks.length > 0 && ` The file does not have: ${lacks.map(String).join('; ')}.`}
    </p>
  );
}
