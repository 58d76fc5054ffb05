-- 0.7 % of the parts.
SELECT sum(CASE WHEN n2.n_name = 'BRAZIL' THEN l_extendedprice * (1 - l_discount) ELSE 0 END) AS brazil,
    sum(l_extendedprice * (1 - l_discount)) AS volume
FROM part, lineitem, supplier, orders, customer, nation n1, nation n2, region
WHERE p_type = 'ECONOMY ANODIZED STEEL'
    AND l_partkey = p_partkey
    AND s_suppkey = l_suppkey
    AND o_orderkey = l_orderkey
    AND o_orderdate BETWEEN '1995-01-01' AND '1996-12-31'
    AND c_custkey = o_custkey
    AND n1.n_nationkey = c_nationkey
    AND r_regionkey = n1.n_regionkey
    AND r_name = 'AMERICA'
    AND n2.n_nationkey = s_nationkey
