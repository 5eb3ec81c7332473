package libvirt

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	lv "libvirt.org/go/libvirt"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// List returns every machine that has a domain or files here.
func (d *Driver) List(ctx context.Context) ([]vm.Found, error) {
	found := map[instance.ID]*vm.Found{}
	if err := d.listDomains(ctx, found); err != nil {
		return nil, fmt.Errorf("cannot list machines: %w", err)
	}
	if err := d.listFiles(found); err != nil {
		return nil, fmt.Errorf("cannot list machines: %w", err)
	}
	list := make([]vm.Found, 0, len(found))
	for id, f := range found {
		h, err := newHandle(id)
		if err != nil {
			return nil, fmt.Errorf("cannot list machines: %w", err)
		}
		f.ID, f.Handle = id, h
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b vm.Found) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list, nil
}

// listDomains finds what libvirt runs.
func (d *Driver) listDomains(ctx context.Context, found map[instance.ID]*vm.Found) error {
	if d.session == nil {
		return nil
	}
	var seen []instance.ID
	err := d.call(ctx, func() error {
		domains, err := d.session.conn.ListAllDomains(0)
		if err != nil {
			return fmt.Errorf("cannot ask libvirt: %w", err)
		}
		for i := range domains {
			if id, ok := d.owns(&domains[i]); ok {
				seen = append(seen, id)
			}
			_ = domains[i].Free()
		}
		return nil
	})
	if err != nil {
		return err
	}
	running := make([]bool, len(seen))
	group, ctx := errgroup.WithContext(ctx)
	for i, id := range seen {
		group.Go(func() error {
			m := d.known(id)
			if m != nil && m.made() {
				m.mu.Lock()
				defer m.mu.Unlock()
				running[i] = m.life.phase != phaseEnded && m.life.phase != phaseIdle
				return nil
			}
			// Not an object to keep: only whoever recovers it does that.
			now, err := d.newMachine(id).present(ctx)
			running[i] = now.phase != phaseEnded
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, id := range seen {
		if running[i] {
			found[id] = &vm.Found{Running: true, Note: "runs without files"}
		}
	}
	return nil
}

// owns reports whether a domain belongs to this state directory. In a root of
// our own every domain does; elsewhere our mark must say so.
func (d *Driver) owns(dom *lv.Domain) (instance.ID, bool) {
	uuid, err := dom.GetUUIDString()
	if err != nil {
		return "", false
	}
	id, err := instance.ParseID(uuid)
	if err != nil {
		return "", false
	}
	if d.embedded() {
		return id, true
	}
	text, err := dom.GetMetadata(lv.DOMAIN_METADATA_ELEMENT, metadataSpace, lv.DOMAIN_AFFECT_CURRENT)
	if err != nil {
		return "", false
	}
	var m mark
	if xml.Unmarshal([]byte(text), &m) != nil {
		return "", false
	}
	return id, m.Owner == d.owner && m.ID == uuid
}

// listFiles adds what the disk tells.
func (d *Driver) listFiles(found map[instance.ID]*vm.Found) error {
	entries, err := os.ReadDir(d.machinesDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		id, err := instance.ParseID(e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		f, running := found[id]
		if !running {
			f = &vm.Found{}
			found[id] = f
		}
		rec, err := loadRecord(d.filesOf(id))
		switch {
		case errors.Is(err, errNoRecord) && running:
			f.Note = "runs without a record"
		case errors.Is(err, errNoRecord):
			f.Note = "its creation was cut short"
		case err != nil:
			f.Note = "its record cannot be read"
		case running:
			f.Note = ""
		case rec.Run != nil && rec.Run.Ended == nil:
			f.Note = "ended while nobody watched"
		}
	}
	return nil
}
