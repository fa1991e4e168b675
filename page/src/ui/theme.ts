/** Light, dark, or what the system says. */
import { effect, signal } from "@preact/signals";
import { recall, remember } from "../chat/memory";

export type Theme = "system" | "light" | "dark";

const NEXT: { readonly [theme in Theme]: Theme } = { system: "dark", dark: "light", light: "system" };

export const theme = signal<Theme>(recall<Theme>("local", "theme") ?? "system");

export function nextTheme(): void {
  theme.value = NEXT[theme.value];
  remember("local", "theme", theme.value === "system" ? null : theme.value);
}

export function showTheme(): void {
  effect(() => {
    if (theme.value === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme.value;
  });
}
