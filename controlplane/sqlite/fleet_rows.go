package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/supervise"
)

// stamp is a time as it is stored; 0 for none.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// timeOf is the opposite of stamp.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func scanInstance(rows *sql.Rows) (supervise.Record, error) {
	var r supervise.Record
	var planJSON, labels string
	var handle, fault, guest sql.NullString
	var expires, created, updated int64
	err := rows.Scan(&r.ID, &r.Tenant, &r.Name, &r.Phase, &r.Reason, &r.After, &r.Resting, &expires, &r.Restarts, &r.Host,
		&r.Provider, &planJSON, &handle, &fault, &guest, &labels, &r.Generation, &created, &updated)
	if err != nil {
		return r, fmt.Errorf("cannot read an instance: %w", err)
	}
	r.ExpiresAt, r.CreatedAt, r.UpdatedAt = timeOf(expires), timeOf(created), timeOf(updated)
	r.Fault, err = decodeFault(fault)
	err = errors.Join(err,
		json.Unmarshal([]byte(planJSON), &r.Plan),
		json.Unmarshal([]byte(labels), &r.Labels),
		decodeNull(handle, &r.Handle),
		decodeNull(guest, &r.Guest),
		checkInstance(r))
	if err != nil {
		return r, damagedRow(fmt.Sprintf("instance %q", r.ID), err)
	}
	return r, nil
}

// checkInstance checks what decides on the fate of a machine.
func checkInstance(r supervise.Record) error {
	_, err := instance.ParseID(string(r.ID))
	if !slices.Contains(instance.Phases(), r.Phase) {
		err = errors.Join(err, fmt.Errorf("there is no phase %q", r.Phase))
	}
	if r.After != "" && !slices.Contains(instance.Events(), r.After) {
		err = errors.Join(err, fmt.Errorf("there is no event %q", r.After))
	}
	return err
}

// instanceValues are the columns in the order of insertInstance and saveInstance.
func instanceValues(r supervise.Record) ([]any, error) {
	planJSON, err := json.Marshal(r.Plan)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the plan of %q: %w", r.ID, err)
	}
	labels := r.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	labelsJSON, err1 := json.Marshal(labels)
	handle, err2 := encodeNull(r.Handle)
	guest, err3 := encodeNull(r.Guest)
	fault, err4 := encodeFault(r.Fault)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("cannot encode instance %q: %w", r.ID, err)
	}
	return []any{
		r.Name, string(r.Phase), r.Reason, string(r.After), r.Resting, stamp(r.ExpiresAt), r.Restarts, r.Host, r.Provider,
		string(planJSON), handle, fault, guest, string(labelsJSON),
		r.Generation, r.CreatedAt.UnixMilli(), r.UpdatedAt.UnixMilli(), string(r.ID), r.Tenant,
	}, nil
}

// storedFault is the stored form of a fault: its error becomes text.
type storedFault struct {
	Blame   instance.Blame `json:"blame"`
	Code    string         `json:"code"`
	Hint    string         `json:"hint,omitempty"`
	Console string         `json:"console,omitempty"`
	Cause   string         `json:"cause"`
}

func encodeFault(f *instance.Fault) (sql.NullString, error) {
	if f == nil {
		return sql.NullString{}, nil
	}
	return encodeNull(&storedFault{Blame: f.Blame, Code: f.Code, Hint: f.Hint, Console: f.Console, Cause: f.Err.Error()})
}

func decodeFault(s sql.NullString) (*instance.Fault, error) {
	var f *storedFault
	if err := decodeNull(s, &f); err != nil || f == nil {
		return nil, err
	}
	return &instance.Fault{Blame: f.Blame, Code: f.Code, Hint: f.Hint, Console: f.Console, Err: errors.New(f.Cause)}, nil
}

func encodeNull[T any](v *T) (sql.NullString, error) {
	if v == nil {
		return sql.NullString{}, nil
	}
	b, err := json.Marshal(v)
	return sql.NullString{String: string(b), Valid: true}, err
}

func decodeNull[T any](s sql.NullString, v *T) error {
	if !s.Valid {
		return nil
	}
	return json.Unmarshal([]byte(s.String), v)
}
