/* The storage side: runs of plain jobs as columns. Each function has a twin in Python.

   A column is a list or a tuple. If a column, a number or bytes have another type, a function
   returns None and changes nothing, and its twin does the work. No user code runs here. */

#include "native.h"

#include <string.h>

/* Sizes and offsets in records, in bytes; see the docstring of ``log/format/codec.py``. */
enum { LENGTH_BYTES = 4, KIND_AT = 4, CRC_BYTES = 4, PLAIN_BYTES = 32, WORD = 8 };
/* Fields of a delivery; a job in a line is three items: spec, body and future. */
enum { TAG, JOB, TOKEN, EPOCH, ATTEMPT, LANE, RECORD, DELIVERY_FIELDS };
enum { LINE_WIDTH = 3 };

/* -- bytes ------------------------------------------------------------------------------------- */

static inline void
put_u32(char *at, uint32_t number)
{
    for (int byte = 0; byte < 4; byte++) {
        at[byte] = (char)(number >> (8 * byte));
    }
}

static inline void
put_u64(char *at, uint64_t number)
{
    put_u32(at, (uint32_t)number);
    put_u32(at + 4, (uint32_t)(number >> 32));
}

static inline uint32_t
get_u32(const char *at)
{
    uint32_t number = 0;
    for (int byte = 0; byte < 4; byte++) {
        number |= (uint32_t)(unsigned char)at[byte] << (8 * byte);
    }
    return number;
}

void
taskq_fill_crc_table(State *state)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
        }
        state->crc[0][byte] = crc;
    }
    for (int row = 1; row < CRC_STEP; row++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = state->crc[row - 1][byte];
            state->crc[row][byte] = (crc >> 8) ^ state->crc[0][crc & 0xFF];
        }
    }
}

/* Return the same as ``zlib.crc32``, in half of its time for a record: eight bytes a step, with a
   table for each of them. M. E. Kounavis, F. L. Berry, "Novel table lookup-based algorithms for
   high-performance CRC generation" (2008). */
static uint32_t
crc_of(const State *state, const char *bytes, Py_ssize_t size, uint32_t crc)
{
    const uint32_t(*table)[256] = state->crc;

    crc = ~crc;
    for (; size >= CRC_STEP; size -= CRC_STEP, bytes += CRC_STEP) {
        uint32_t low = get_u32(bytes) ^ crc, high = get_u32(bytes + 4);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF]
              ^ table[4][low >> 24] ^ table[3][high & 0xFF] ^ table[2][high >> 8 & 0xFF]
              ^ table[1][high >> 16 & 0xFF] ^ table[0][high >> 24];
    }
    for (; size > 0; size--, bytes++) {
        crc = (crc >> 8) ^ table[0][(crc ^ (unsigned char)*bytes) & 0xFF];
    }
    return ~crc;
}

/* -- columns ----------------------------------------------------------------------------------- */

static inline int
is_column(PyObject *column, Py_ssize_t size)
{
    return (PyList_CheckExact(column) || PyTuple_CheckExact(column)) && Py_SIZE(column) == size;
}

/* Return a borrowed item; NULL, without an error, past the end: code that the garbage collector ran
   may have shortened the column. */
static inline PyObject *
item(PyObject *column, Py_ssize_t at)
{
    if (at >= Py_SIZE(column)) return NULL;
    return PyList_CheckExact(column) ? PyList_GET_ITEM(column, at) : PyTuple_GET_ITEM(column, at);
}

/* Read an unsigned number of 64 bits; 0, without an error, for any other object. */
static inline int
get_number(PyObject *object, uint64_t *number)
{
    if (object == NULL || !PyLong_CheckExact(object)) return 0;
    *number = PyLong_AsUnsignedLongLong(object);
    if (*number != (uint64_t)-1 || !PyErr_Occurred()) return 1;
    PyErr_Clear();
    return 0;
}

/* Return whether a function got the wanted number of arguments; 0 with an error set. */
static int
is_call(const char *name, Py_ssize_t count, Py_ssize_t wanted)
{
    if (count == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments", name, wanted);
    return 0;
}

/* -- enqueue ----------------------------------------------------------------------------------- */

/* Make a job's ENQUEUED record; its CRC starts from the lsn. */
static PyObject *
new_record(const State *state, PyObject *tail, PyObject *body, uint32_t size, uint64_t lsn)
{
    PyObject *record = PyBytes_FromStringAndSize(NULL, size);
    if (record == NULL) return NULL;
    char *at = PyBytes_AS_STRING(record);
    size_t before = (size_t)PyBytes_GET_SIZE(tail);
    put_u32(at, size);
    memcpy(at + LENGTH_BYTES, PyBytes_AS_STRING(tail), before);
    memcpy(at + LENGTH_BYTES + before, PyBytes_AS_STRING(body), (size_t)PyBytes_GET_SIZE(body));
    uint32_t crc = crc_of(state, at, size - CRC_BYTES, (uint32_t)lsn);
    put_u32(at + size - CRC_BYTES, crc);
    return record;
}

/* Fill ``records`` and ``places``; return the end of the last record. 0 with an error set, or,
   without an error, if Python must make them. ``tails`` is one tail for all, or a column. */
static uint64_t
fill_born(const State *state, PyObject *tails, PyObject *bodies, uint64_t lsn, uint64_t location,
          PyObject *records, char *places)
{
    Py_ssize_t count = PyList_GET_SIZE(records);

    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *tail = PyBytes_CheckExact(tails) ? tails : item(tails, number);
        PyObject *body = item(bodies, number);
        if (tail == NULL || !PyBytes_CheckExact(tail) || PyBytes_GET_SIZE(tail) > UINT16_MAX
            || body == NULL || !PyBytes_CheckExact(body)) {
            return 0;
        }
        Py_ssize_t before = PyBytes_GET_SIZE(tail);
        Py_ssize_t most = (Py_ssize_t)INT32_MAX - LENGTH_BYTES - CRC_BYTES - before;
        if (PyBytes_GET_SIZE(body) > most) return 0;
        uint32_t size = (uint32_t)(LENGTH_BYTES + before + PyBytes_GET_SIZE(body) + CRC_BYTES);
        PyObject *record = new_record(state, tail, body, size, lsn + (uint64_t)number);
        if (record == NULL) return 0;
        PyList_SET_ITEM(records, number, record);
        memcpy(places + WORD * number, &location, WORD);
        location += size;
    }
    return location;
}

/* born_records(tail or tails, bodies, lsn, location) -> (records, locations as in an array("Q"),
   end) or None */
PyObject *
taskq_born_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t lsn, location;

    if (!is_call("born_records", count, 4)) return NULL;
    PyObject *tail = args[0], *bodies = args[1];
    if (!(PyList_CheckExact(bodies) || PyTuple_CheckExact(bodies))
        || !(PyBytes_CheckExact(tail) || is_column(tail, Py_SIZE(bodies)))
        || !get_number(args[2], &lsn)
        || !get_number(args[3], &location)) {
        Py_RETURN_NONE;
    }
    PyObject *records = PyList_New(Py_SIZE(bodies)), *result = NULL;
    PyObject *places = PyBytes_FromStringAndSize(NULL, WORD * Py_SIZE(bodies));
    if (records != NULL && places != NULL) {
        uint64_t end = fill_born(state_of(module), tail, bodies, lsn, location, records,
                                 PyBytes_AS_STRING(places));
        if (end != 0) {
            result = Py_BuildValue("(OOK)", records, places, (unsigned long long)end);
        }
        else if (!PyErr_Occurred()) {
            result = Py_NewRef(Py_None);
        }
    }
    Py_XDECREF(records);
    Py_XDECREF(places);
    return result;
}

/* take(line, room, record_bytes) -> (specs, bodies, futures), or None

   Cuts jobs off the head of a line until their records exceed ``room`` bytes. */
PyObject *
taskq_take(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!is_call("take", count, 3)) return NULL;
    PyObject *line = args[0], *columns[LINE_WIDTH] = {NULL}, *result = NULL;
    Py_ssize_t room = PyLong_AsSsize_t(args[1]), extra = PyLong_AsSsize_t(args[2]), size = 0;
    if (PyErr_Occurred()) return NULL;
    if (!PyList_CheckExact(line) || PyList_GET_SIZE(line) % LINE_WIDTH != 0 || extra < 0) {
        Py_RETURN_NONE;
    }
    Py_ssize_t jobs = 0, most = PyList_GET_SIZE(line) / LINE_WIDTH;
    for (; jobs < most && (jobs == 0 || size <= room); jobs++) {
        PyObject *body = PyList_GET_ITEM(line, LINE_WIDTH * jobs + 1);
        if (!PyBytes_CheckExact(body) || PyBytes_GET_SIZE(body) > PY_SSIZE_T_MAX - extra - size) {
            Py_RETURN_NONE;
        }
        size += PyBytes_GET_SIZE(body) + extra;
    }
    for (int column = 0; column < LINE_WIDTH; column++) {
        columns[column] = PyList_New(jobs);
        if (columns[column] == NULL) goto done;
        for (Py_ssize_t job = 0; job < jobs; job++) {
            PyObject *part = PyList_GET_ITEM(line, LINE_WIDTH * job + column);
            PyList_SET_ITEM(columns[column], job, Py_NewRef(part));
        }
    }
    if (PyList_SetSlice(line, 0, LINE_WIDTH * jobs, NULL) < 0) goto done;
    result = PyTuple_Pack(LINE_WIDTH, columns[0], columns[1], columns[2]);
done:
    for (int column = 0; column < LINE_WIDTH; column++) {
        Py_XDECREF(columns[column]);
    }
    return result;
}

/* -- claim and settle -------------------------------------------------------------------------- */

/* plain_records(head, attempts, jobs, last) -> bytes, or None

   ``head`` is the first eight bytes of each record; ``last`` is a column, or one number for all. */
PyObject *
taskq_plain_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    uint64_t attempt, job, last = 0;

    if (!is_call("plain_records", count, 4)) return NULL;
    PyObject *head = args[0], *attempts = args[1], *jobs = args[2], *lasts = args[3];
    Py_ssize_t size = PyObject_Size(jobs);
    if (size < 0) return NULL;
    int is_one = get_number(lasts, &last);
    if (!PyBytes_CheckExact(head) || PyBytes_GET_SIZE(head) != WORD || !is_column(jobs, size)
        || !is_column(attempts, size) || !(is_one || is_column(lasts, size))
        || size > PY_SSIZE_T_MAX / PLAIN_BYTES) {
        Py_RETURN_NONE;
    }
    PyObject *records = PyBytes_FromStringAndSize(NULL, PLAIN_BYTES * size);
    if (records == NULL) return NULL;
    char *at = PyBytes_AS_STRING(records);
    for (Py_ssize_t number = 0; number < size; number++, at += PLAIN_BYTES) {
        if (!get_number(item(attempts, number), &attempt) || attempt > UINT32_MAX
            || !get_number(item(jobs, number), &job)
            || !(is_one || get_number(item(lasts, number), &last))) {
            Py_DECREF(records);
            Py_RETURN_NONE;
        }
        memcpy(at, PyBytes_AS_STRING(head), WORD);
        put_u64(at + WORD, attempt << 32);
        put_u64(at + 2 * WORD, job);
        put_u64(at + 3 * WORD, last);
    }
    return records;
}

/* whole_records(data, first, kind, size_min, whole, locations, jobs) -> list, or None

   Copies records out of ``data``, which begins at the location ``first``. Stops at the first record
   that is outside of ``data``, of another kind, shorter than ``size_min``, or damaged: the CRC of a
   whole record, with its own CRC, is ``whole``. */
PyObject *
taskq_whole_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    const State *state = state_of(module);
    uint64_t first, kind, size_min, whole, location, job;

    if (!is_call("whole_records", count, 7)) return NULL;
    PyObject *data = args[0], *locations = args[5], *jobs = args[6];
    Py_ssize_t size = PyObject_Size(jobs);
    if (size < 0) return NULL;
    if (!PyBytes_CheckExact(data) || !get_number(args[1], &first) || !get_number(args[2], &kind)
        || !get_number(args[3], &size_min) || !get_number(args[4], &whole)
        || size_min <= KIND_AT || !is_column(jobs, size) || !is_column(locations, size)) {
        Py_RETURN_NONE;
    }
    PyObject *records = PyList_New(0);
    if (records == NULL) return NULL;
    const char *bytes = PyBytes_AS_STRING(data);
    uint64_t end = (uint64_t)PyBytes_GET_SIZE(data);
    for (Py_ssize_t number = 0; number < size; number++) {
        if (!get_number(item(locations, number), &location)
            || !get_number(item(jobs, number), &job)) {
            Py_DECREF(records);
            Py_RETURN_NONE;
        }
        uint64_t at = location - first; /* a huge number if it is before ``first`` */
        if (at > end || end - at < size_min || (unsigned char)bytes[at + KIND_AT] != kind) break;
        uint32_t length = get_u32(bytes + at);
        if (length < size_min || length > end - at
            || crc_of(state, bytes + at, length, (uint32_t)job) != whole) {
            break;
        }
        PyObject *record = PyBytes_FromStringAndSize(bytes + at, length);
        if (record == NULL || PyList_Append(records, record) < 0) {
            Py_XDECREF(record);
            Py_DECREF(records);
            return NULL;
        }
        Py_DECREF(record);
    }
    return records;
}

/* Make a delivery, which is a named tuple, with empty fields. */
static PyObject *
new_delivery(PyTypeObject *type)
{
    PyObject *delivery = type->tp_alloc(type, DELIVERY_FIELDS);
#if PY_VERSION_HEX >= 0x030E0000
    if (delivery != NULL) {
        ((PyTupleObject *)delivery)->ob_hash = -1; /* not computed yet */
    }
#endif
    return delivery;
}

/* Make the delivery of a claim, and enter the claim in ``running``; NULL with an error set. */
static PyObject *
claim(PyObject *const *args, PyObject *token, Py_ssize_t number)
{
    PyObject *job = item(args[5], number);
    PyObject *delivery = new_delivery((PyTypeObject *)args[0]);
    if (delivery == NULL) return NULL;
    PyObject *fields[] = {args[1], job, token, args[2], item(args[6], number),
                          item(args[7], number), item(args[8], number)};
    for (int field = TAG; field < DELIVERY_FIELDS; field++) {
        if (fields[field] == NULL) {
            PyErr_SetString(PyExc_RuntimeError, "a column changed its size");
            Py_DECREF(delivery);
            return NULL;
        }
        PyTuple_SET_ITEM(delivery, field, Py_NewRef(fields[field]));
    }
    PyObject *held = PyTuple_Pack(3, token, args[2], args[3]);
    /* Neither can be part of a cycle, so the garbage collector can skip thousands of them. */
    PyObject_GC_UnTrack(delivery);
    if (held != NULL) {
        PyObject_GC_UnTrack(held);
    }
    if (held == NULL || PyDict_SetItem(args[9], job, held) < 0) {
        Py_CLEAR(delivery);
    }
    Py_XDECREF(held);
    return delivery;
}

/* claimed(type, tag, epoch, owner, token, jobs, attempts, lanes, records, running) -> deliveries,
   or None */
PyObject *
taskq_claimed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    uint64_t token;

    if (!is_call("claimed", count, 10)) return NULL;
    PyTypeObject *type = (PyTypeObject *)args[0];
    Py_ssize_t size = PyObject_Size(args[5]);
    if (size < 0) return NULL;
    if (!PyType_Check(args[0]) || !PyType_IsSubtype(type, &PyTuple_Type)
        || !get_number(args[4], &token) || !is_column(args[5], size)
        || !is_column(args[6], size) || !is_column(args[7], size)
        || !is_column(args[8], size) || !PyDict_CheckExact(args[9])) {
        Py_RETURN_NONE;
    }
    PyObject *deliveries = PyList_New(size);
    for (Py_ssize_t number = 0; deliveries != NULL && number < size; number++) {
        PyObject *lsn = PyLong_FromUnsignedLongLong(token + (uint64_t)number);
        PyObject *delivery = lsn == NULL ? NULL : claim(args, lsn, number);
        Py_XDECREF(lsn);
        if (delivery == NULL) {
            Py_CLEAR(deliveries);
        }
        else {
            PyList_SET_ITEM(deliveries, number, delivery);
        }
    }
    return deliveries;
}

/* Return whether a delivery's claim, (token, epoch, owner), is its job's; -1 with an error set. */
static int
is_held(PyObject *delivery, PyObject *running, PyObject *owner)
{
    if (delivery == NULL || !PyTuple_Check(delivery) || PyTuple_GET_SIZE(delivery) != DELIVERY_FIELDS
        || !PyLong_CheckExact(PyTuple_GET_ITEM(delivery, JOB))) {
        return 0;
    }
    PyObject *held = PyDict_GetItemWithError(running, PyTuple_GET_ITEM(delivery, JOB));
    if (held == NULL) return PyErr_Occurred() ? -1 : 0;
    if (!PyTuple_CheckExact(held) || PyTuple_GET_SIZE(held) != 3) return 0;
    PyObject *wanted[] = {PyTuple_GET_ITEM(delivery, TOKEN), PyTuple_GET_ITEM(delivery, EPOCH),
                          owner};
    for (int part = 0; part < 3; part++) {
        PyObject *number = PyTuple_GET_ITEM(held, part);
        if (!PyLong_CheckExact(number) || !PyLong_CheckExact(wanted[part])) return 0;
        int is_same = PyObject_RichCompareBool(number, wanted[part], Py_EQ);
        if (is_same <= 0) return is_same;
    }
    return 1;
}

/* Remove a delivery's claim from ``running``; 0: the second time; -1 with an error set. */
static int
take_claim(PyObject *delivery, PyObject *running, PyObject **columns, Py_ssize_t number)
{
    if (delivery == NULL) return 0;
    PyObject *job = PyTuple_GET_ITEM(delivery, JOB);
    PyObject *held = PyDict_GetItemWithError(running, job);
    if (held == NULL) return PyErr_Occurred() ? -1 : 0;
    PyList_SET_ITEM(columns[3], number, Py_NewRef(held));
    PyList_SET_ITEM(columns[0], number, Py_NewRef(job));
    PyList_SET_ITEM(columns[1], number, Py_NewRef(PyTuple_GET_ITEM(delivery, ATTEMPT)));
    PyList_SET_ITEM(columns[2], number, Py_NewRef(PyTuple_GET_ITEM(delivery, TOKEN)));
    return PyDict_DelItem(running, job) < 0 ? -1 : 1;
}

/* Put the first ``count`` removed claims back; -1 with an error set. */
static int
put_back(PyObject *running, PyObject **columns, Py_ssize_t count)
{
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *job = PyList_GET_ITEM(columns[0], number);
        if (PyDict_SetItem(running, job, PyList_GET_ITEM(columns[3], number)) < 0) return -1;
    }
    return 0;
}

/* unclaimed(deliveries, owner, running) -> (jobs, attempts, tokens), or None

   Removes the claims of all deliveries from ``running``; none of them if a claim has ended, or a
   delivery is there twice. */
PyObject *
taskq_unclaimed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!is_call("unclaimed", count, 3)) return NULL;
    PyObject *deliveries = args[0], *running = args[2], *columns[4] = {NULL}, *result = NULL;
    Py_ssize_t size = PyObject_Size(deliveries);
    if (size < 0) return NULL;
    if (!is_column(deliveries, size) || !PyDict_CheckExact(running)) Py_RETURN_NONE;
    for (Py_ssize_t number = 0; number < size; number++) {
        int is_ours = is_held(item(deliveries, number), running, args[1]);
        if (is_ours < 0) return NULL;
        if (is_ours == 0) Py_RETURN_NONE;
    }
    for (int column = 0; column < 4; column++) {
        columns[column] = PyList_New(size);
        if (columns[column] == NULL) goto done;
    }
    for (Py_ssize_t number = 0; number < size; number++) {
        int is_taken = take_claim(item(deliveries, number), running, columns, number);
        if (is_taken <= 0) {
            if (is_taken == 0 && put_back(running, columns, number) == 0) {
                result = Py_NewRef(Py_None);
            }
            goto done;
        }
    }
    result = PyTuple_Pack(3, columns[0], columns[1], columns[2]);
done:
    for (int column = 0; column < 4; column++) {
        Py_XDECREF(columns[column]);
    }
    return result;
}
