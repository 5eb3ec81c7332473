package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

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

func formats() []string { return []string{formatTable, formatWide, formatJSON, formatYAML, formatName} }

func (a *app) checkFormat() error {
	if slices.Contains(formats(), a.format) {
		return nil
	}
	return usagef("choose one of table, wide, json, yaml and name", "cannot print in format %q", a.format)
}

// forPeople reports whether people read the output, not programs.
func (a *app) forPeople() bool { return a.format == formatTable || a.format == formatWide }

// result is what a command says, in every form there is. Programs get value
// or names; people get the first of table, fields and text that is set, and
// then text.
type result struct {
	value any
	names []string
	// table returns the rows of a list, the first one the titles; with wide
	// it may have more columns.
	table  func(wide bool) [][]string
	fields [][2]string
	text   string // harmless
}

// print is the one place that prints results.
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
	var err error
	switch {
	case r.table != nil:
		err = printTable(a.stdout, r.table(a.format == formatWide))
	case r.fields != nil:
		err = printFields(a.stdout, r.fields)
	}
	if err == nil && r.text != "" {
		_, err = io.WriteString(a.stdout, strings.TrimRight(r.text, "\n")+"\n")
	}
	if err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

// rows is the table of a list: titles, and a row for each item.
func rows[T any](titles []string, items []T, row func(T) []string) func(bool) [][]string {
	return func(bool) [][]string {
		all := [][]string{titles}
		for _, item := range items {
			all = append(all, row(item))
		}
		return all
	}
}

// namesOf are what a list is by.
func namesOf[T any](items []T, name func(T) string) []string {
	names := make([]string, 0, len(items))
	for _, item := range items {
		names = append(names, name(item))
	}
	return names
}

func printTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(tw, strings.Join(cells(row), "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// cells makes a row fit to be shown.
func cells(row []string) []string {
	out := make([]string, len(row))
	for i, cell := range row {
		if out[i] = terminal.Line(inCommands(cell)); out[i] == "" {
			out[i] = "-"
		}
	}
	return out
}

// printFields prints "key: value" lines and leaves out empty values.
func printFields(w io.Writer, fields [][2]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if f[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(tw, "%s:\t%s\n", f[0], terminal.Line(inCommands(f[1]))); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// flow prints results one by one, as they come: lines of JSON, YAML documents,
// names, or rows whose columns only ever grow.
type flow struct {
	a      *app
	widths []int
	begun  bool
}

// titles prints the head of a table, and makes room for the rows that follow.
func (f *flow) titles(row []string, room [][]string) error {
	if !f.a.forPeople() {
		return nil
	}
	for _, r := range room {
		f.fit(cells(r))
	}
	return f.row(row)
}

func (f *flow) fit(row []string) {
	for len(f.widths) < len(row) {
		f.widths = append(f.widths, 0)
	}
	for i, cell := range row {
		f.widths[i] = max(f.widths[i], utf8.RuneCountInString(cell))
	}
}

func (f *flow) row(row []string) error {
	row = cells(row)
	f.fit(row)
	var b strings.Builder
	for i, cell := range row {
		b.WriteString(cell)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", f.widths[i]-utf8.RuneCountInString(cell)+2))
		}
	}
	_, err := fmt.Fprintln(f.a.stdout, b.String())
	return err
}

// print prints the next one.
func (f *flow) print(value any, name string, row []string) error {
	var err error
	switch f.a.format {
	case formatJSON:
		var line []byte
		if line, err = json.Marshal(value); err == nil {
			_, err = f.a.stdout.Write(append(terminal.JSON(line), '\n'))
		}
	case formatYAML:
		if f.begun {
			fmt.Fprintln(f.a.stdout, "---")
		}
		err = printYAML(f.a.stdout, value)
	case formatName:
		_, err = fmt.Fprintln(f.a.stdout, terminal.Line(name))
	default:
		err = f.row(row)
	}
	f.begun = true
	if err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

func jsonText(v any) ([]byte, error) {
	var b bytes.Buffer
	if raw, ok := v.(json.RawMessage); ok {
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return nil, fmt.Errorf("cannot print: %w", err)
		}
		b.WriteByte('\n')
	} else {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return nil, fmt.Errorf("cannot print: %w", err)
		}
	}
	return terminal.JSON(b.Bytes()), nil
}

func printJSON(w io.Writer, v any) error {
	text, err := jsonText(v)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}
