package main

import (
	"fmt"
	"io"
	"strings"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// progress shows how far an operation is: a bar on a terminal, a line for
// every new step elsewhere.
type progress struct {
	w      io.Writer
	bar    bool
	quiet  bool // no lines; warnings are told all the same
	drawn  bool
	phase  string
	warned int
}

func newProgress(w io.Writer) *progress { return &progress{w: w, bar: isTerminal(w)} }

const barWidth = 24

func (p *progress) show(op managementv1.Operation) {
	for _, w := range op.Warnings[min(p.warned, len(op.Warnings)):] {
		p.end()
		fmt.Fprintf(p.w, "warning: %s\n", terminal.Line(w))
		p.warned++
	}
	switch {
	case p.bar:
		done := barWidth * min(max(op.Percent, 0), 100) / 100
		// Back to the start, erase to the end of the line.
		fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %3d%% %s", strings.Repeat("#", done), strings.Repeat(" ", barWidth-done),
			op.Percent, terminal.Line(op.Phase))
		p.drawn = true
	case !p.quiet && op.Phase != p.phase && op.Phase != "":
		fmt.Fprintf(p.w, "%s: %s (%d%%)\n", terminal.Line(op.InstanceName), terminal.Line(op.Phase), op.Percent)
	}
	p.phase = op.Phase
}

// end removes the bar.
func (p *progress) end() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}
