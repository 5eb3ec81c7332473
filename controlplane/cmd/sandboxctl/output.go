package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"gopkg.in/yaml.v3"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
)

// The forms of output.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatName  = "name"
)

func (a *app) checkFormat() error {
	switch a.format {
	case formatTable, formatWide, formatJSON, formatYAML, formatName:
		return nil
	}
	return &exitError{exitUsage, withRemedy(fmt.Errorf("cannot print in format %q", a.format),
		"choose one of table, wide, json, yaml and name")}
}

// result is one thing to print in any form.
type result struct {
	value any // for json and yaml
	// table returns rows, the first one the titles; each row may hold more
	// columns than are shown unless wide is set.
	table func(wide bool) [][]string
	names []string
}

func (a *app) print(r result) error {
	switch a.format {
	case formatJSON:
		return printJSON(a.stdout, r.value)
	case formatYAML:
		return printYAML(a.stdout, r.value)
	case formatName:
		for _, n := range r.names {
			if _, err := fmt.Fprintln(a.stdout, terminal.Line(n)); err != nil {
				return fmt.Errorf("cannot print: %w", err)
			}
		}
		return nil
	}
	return printTable(a.stdout, r.table(a.format == formatWide))
}

func printTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = terminal.Line(cell)
			if cells[i] == "" {
				cells[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(tw, strings.Join(cells, "\t")); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

// printFields prints "key: value" lines and leaves out empty values.
func printFields(w io.Writer, fields [][2]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if f[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(tw, "%s:\t%s\n", f[0], terminal.Line(f[1])); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	if raw, ok := v.(json.RawMessage); ok {
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
		b.WriteByte('\n')
	} else {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
	}
	if _, err := w.Write(terminal.JSON(b.Bytes())); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

// printYAML prints the JSON form of v as YAML, members in the same order.
func printYAML(w io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	var doc yaml.Node // JSON is YAML; only its style differs
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	blockStyle(&doc)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

func blockStyle(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || terminal.Text(n.Value) == n.Value {
		n.Style = 0
	} // else the quotes stay, and with them the escapes
	for _, child := range n.Content {
		blockStyle(child)
	}
}

// size shows bytes as people write them.
func size(n int64) string {
	const units = "KMGT"
	v, unit := float64(n), -1
	for v >= 1024 && unit < len(units)-1 {
		v /= 1024
		unit++
	}
	if unit < 0 {
		return fmt.Sprintf("%d B", n)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[unit:unit+1] + "iB"
}

// age shows how long ago t was, in one unit.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := max(time.Since(t), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
