package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

func steps() []managementv1.Operation {
	return []managementv1.Operation{
		{InstanceName: "demo", Phase: "image", Percent: 0},
		{InstanceName: "demo", Phase: "image", Percent: 20},
		{InstanceName: "demo", Phase: "boot\x1b[2J", Percent: 50, Warnings: []string{"slow"}},
		{InstanceName: "demo", Phase: "agent", Percent: 250, Warnings: []string{"slow"}},
	}
}

// TestProgressOnATerminal draws a bar, and takes it away at the end.
func TestProgressOnATerminal(t *testing.T) {
	ptmx, tty := openTerminal(t)
	p := newProgress(tty)
	for _, s := range steps() {
		p.show(s)
	}
	p.end()
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	shown, _ := io.ReadAll(ptmx) // ends with an error: the other side has closed
	text := string(shown)
	for _, want := range []string{"[" + strings.Repeat("#", 4) + strings.Repeat(" ", 20) + "]  20% image", `boot\x1b[2J`, "warning: slow\r\n",
		"[" + strings.Repeat("#", barWidth) + "]"} {
		if !strings.Contains(text, want) {
			t.Errorf("the terminal got %q, want %q in it", text, want)
		}
	}
	if !strings.HasSuffix(text, "\r\x1b[K") || strings.Contains(text, "\x1b[2J") {
		t.Errorf("the terminal got %q", text)
	}
}

// TestProgressElsewhere prints a line for every step.
func TestProgressElsewhere(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	for _, s := range steps() {
		p.show(s)
	}
	p.end()
	const want = "demo: image (0%)\nwarning: slow\ndemo: boot\\x1b[2J (50%)\ndemo: agent (250%)\n"
	if b.String() != want {
		t.Errorf("got %q", b.String())
	}
}

// TestFlow prints one by one, in every form.
func TestFlow(t *testing.T) {
	for format, want := range map[string]string{
		formatTable: "NAME  STATE\nlong-name  a\\x07\nb          -\n",
		formatJSON:  "{\"v\":\"\\u009b\"}\n{\"v\":\"\\u009b\"}\n",
		formatYAML:  "v: \"\\x9B\"\n---\nv: \"\\x9B\"\n",
		formatName:  "long-name\nb\n",
	} {
		var b bytes.Buffer
		f := flow{a: &app{stdout: &b, format: format}}
		v := map[string]string{"v": "\u009b"}
		if err := f.titles([]string{"NAME", "STATE"}, nil); err != nil {
			t.Fatal(err)
		}
		for _, row := range [][]string{{"long-name", "a\x07"}, {"b", ""}} {
			if err := f.print(v, row[0], row); err != nil {
				t.Fatal(err)
			}
		}
		if b.String() != want {
			t.Errorf("%s: got %q, want %q", format, b.String(), want)
		}
	}
}
