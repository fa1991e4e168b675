import { render } from "preact";
import { begin } from "./chat/store";
import { App } from "./ui/App";
import { showTheme } from "./ui/theme";

showTheme();
begin();
render(<App />, document.getElementById("app")!);
