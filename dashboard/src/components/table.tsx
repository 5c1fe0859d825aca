import type { ComponentChildren, JSX } from 'preact';

/** A table with a row of names at its top. `children` are its rows. */
export function Table({
  heads,
  children,
}: {
  heads: readonly ComponentChildren[];
  children: ComponentChildren;
}): JSX.Element {
  return (
    <table>
      <thead>
        <tr>
          {heads.map((head, index) => (
            <th scope="col" key={`${index}`}>
              {head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>{children}</tbody>
    </table>
  );
}
