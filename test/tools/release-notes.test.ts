import { describe, expect, it } from 'vitest';
import { releaseNotes } from '../../tools/release-notes.ts';

const CHANGELOG =
  '# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n### Added\n\n- A thing.\n\n## 0.1.0 - 2026-11-01\n\n- Older.\n';

describe('the notes of a release', () => {
  it('are the section of its version', () => {
    expect(releaseNotes(CHANGELOG, '0.2.0', 'v0.2.0')).toBe('### Added\n\n- A thing.');
    expect(releaseNotes(CHANGELOG, '0.1.0', 'v0.1.0')).toBe('- Older.');
  });

  it.each([
    ['a tag of another version', CHANGELOG, '0.2.0', 'v0.1.0', 'is not that of the version'],
    ['a version without a section', CHANGELOG, '0.3.0', 'v0.3.0', 'no section for 0.3.0'],
    ['a version that is the beginning of another', CHANGELOG, '0.2', 'v0.2', 'no section for 0.2'],
    [
      'entries that are not released',
      CHANGELOG.replace('Unreleased\n', 'Unreleased\n\n- New.\n'),
      '0.2.0',
      'v0.2.0',
      'under Unreleased',
    ],
    ['a section without a date', CHANGELOG.replace(' - 2026-12-01', ' soon'), '0.2.0', 'v0.2.0', 'needs a title'],
    ['an empty section', CHANGELOG.replace('### Added\n\n- A thing.\n', ''), '0.2.0', 'v0.2.0', 'is empty'],
  ])('are refused for %s', (_, changelog, version, tag, message) => {
    expect(() => releaseNotes(changelog, version, tag)).toThrow(message);
  });
});
