// Command sandbox-images builds the shipped images into a store, and lists
// what the store has.
//
//	sandbox-images [flags] [name...]   build these images, or all of them
//	sandbox-images [flags] kernel      fetch only the kernel and its modules
//	sandbox-images [flags] reproduce [name...]
//	                                   build root disks again and compare
//	sandbox-images [flags] ls          list the store
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"agentic-sandbox.aiwg.io/sandbox/images/build"
	"agentic-sandbox.aiwg.io/sandbox/images/recipes"
	"agentic-sandbox.aiwg.io/sandbox/images/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sandbox-images:", err)
		os.Exit(1)
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	var opts build.Options
	var mirrors list
	flags := flag.NewFlagSet("sandbox-images", flag.ContinueOnError)
	dir := flags.String("store", ".build/images", "directory of the image store")
	flags.StringVar(&opts.WorkDir, "work", ".build/work", "directory for unfinished and reusable files")
	flags.StringVar(&opts.Agent, "agent", "bin/sandbox-agent", "the static guest agent")
	flags.BoolVar(&opts.Refresh, "refresh", false, "build again, with the packages of today")
	flags.BoolVar(&opts.Verbose, "v", false, "show what the programs say")
	flags.Var(&mirrors, "mirror", "where Debian packages come from (repeatable; default: the host's sources)")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	s, err := store.Open(*dir)
	if err != nil {
		return err
	}
	opts.Store, opts.Mirrors, opts.Progress = s, mirrors, stdout
	switch flags.Arg(0) {
	case "ls":
		return ls(s, stdout)
	case "kernel":
		return fetchKernel(ctx, opts, stdout)
	case "reproduce":
		return build.Reproduce(ctx, opts, flags.Args()[1:]...)
	default:
		_, err = build.All(ctx, opts, flags.Args()...)
		return err
	}
}

func ls(s *store.Store, stdout io.Writer) error {
	items, err := s.List()
	if err != nil {
		return err
	}
	for _, i := range items {
		mark := " "
		if i.Current {
			mark = "*"
		}
		m := i.Manifest
		const mib = 1 << 20
		_, err := fmt.Fprintf(stdout, "%s %s  disk %d MiB of %d MiB, kernel %s, built %s\n", mark, m.Ref(), m.RootDisk.Size/mib,
			m.RootDisk.VirtualSize/mib, m.Labels["kernel.release"], m.Provenance.BuiltAt.Format("2006-01-02 15:04"))
		if err != nil {
			return err
		}
	}
	return nil
}

// fetchKernel takes the kernel from the first shipped recipe; all share it.
func fetchKernel(ctx context.Context, opts build.Options, stdout io.Writer) error {
	r, err := recipes.Shipped(recipes.Names()[0])
	if err != nil {
		return err
	}
	dir, err := build.Kernel(ctx, r, opts)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, dir)
	return err
}
